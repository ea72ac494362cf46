// Command etcd runs a user's own etcd: one member, with TLS and client certificates.
//
//	etcd FOLDER URL CA CERTIFICATE KEY
package main

import (
	"log"
	"net/url"
	"os"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	address, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	config := embed.NewConfig()
	config.Dir = os.Args[1]
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*address}, []url.URL{*address}
	config.ClientTLSInfo = transport.TLSInfo{TrustedCAFile: os.Args[3], CertFile: os.Args[4], KeyFile: os.Args[5], ClientCertAuth: true}
	config.LogLevel = "error"
	member, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(<-member.Err())
}
