// Package etcd is an etcd without TLS for tests.
package etcd

import (
	"net"
	"net/url"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
)

// Start starts one that ends with the test, and returns its URL.
func Start(t testing.TB) string {
	t.Helper()
	client := FreeURL(t)
	StartAt(t, client)
	return client.String()
}

// StartAt starts one at a URL.
func StartAt(t testing.TB, client url.URL) {
	t.Helper()
	peer := FreeURL(t)
	config := embed.NewConfig()
	config.Dir, config.LogLevel = t.TempDir(), "error"
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
}

// FreeURL is one that nobody listens on.
func FreeURL(t testing.TB) url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return url.URL{Scheme: "http", Host: listener.Addr().String()}
}
