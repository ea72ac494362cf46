package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// EtcdFiles are the files of an etcd member's PKI. One authority signs what members show
// each other, another one signs the certificates of etcd's servers and clients. Neither
// signs anything else. etcd reads each pair again for each connection.
type EtcdFiles struct {
	PeerCAFile, ServerCAFile string
	// Peer is for both sides of a connection between members.
	PeerCertFile, PeerKeyFile     string
	ServerCertFile, ServerKeyFile string
	// Client is for the API server, and for etcdctl.
	ClientCertFile, ClientKeyFile string
}

// etcdClientUser is the user as which servers call etcd.
const etcdClientUser = "etcd-client"

// addEtcd adds what an etcd member needs, in a folder of its own. The file names are the
// same as in k3s.
func (s *Server) addEtcd(folder string, now time.Time) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make folder of etcd's certificates: %w", datadir.Explain(err))
	}
	file := func(name string) string { return filepath.Join(folder, name) }
	peerCA, err := ensureAuthority(file("peer-ca"), "kedge-etcd-peer-ca", now)
	if err != nil {
		return fmt.Errorf("ensure certificate authority: %w", err)
	}
	serverCA, err := ensureAuthority(file("server-ca"), "kedge-etcd-server-ca", now)
	if err != nil {
		return fmt.Errorf("ensure certificate authority: %w", err)
	}
	s.etcdCA = serverCA
	peer := s.leaf(file("peer-server-client"), peerCA, pkix.Name{CommonName: "etcd-peer"}, s.etcdNames)
	peer.usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	server := s.leaf(file("server-client"), serverCA, pkix.Name{CommonName: "etcd-server"}, s.etcdNames)
	client := s.leaf(file("client"), serverCA, pkix.Name{CommonName: etcdClientUser}, nil)
	s.Etcd = EtcdFiles{
		PeerCAFile: peerCA.certFile, ServerCAFile: serverCA.certFile,
		PeerCertFile: peer.certFile, PeerKeyFile: peer.keyFile,
		ServerCertFile: server.certFile, ServerKeyFile: server.keyFile,
		ClientCertFile: client.certFile, ClientKeyFile: client.keyFile,
	}
	return nil
}

func (s *Server) etcdNames() sans {
	return splitNames([]string{"localhost", "127.0.0.1", "::1", s.nodeName}, s.nodeIPs)
}

// CheckEtcdClient fails unless the client certificate, with its chain, is of etcd's own
// authority. Only servers have such a certificate.
func (s *Server) CheckEtcdClient(chain []*x509.Certificate) error {
	if s.etcdCA == nil {
		return errors.New("this server has no etcd")
	}
	return s.checkClient(s.etcdCA, chain)
}

// EtcdClientTLS returns the TLS settings with which this server calls the etcd of other
// servers on port 6443.
func (s *Server) EtcdClientTLS() *tls.Config {
	config := s.apiTLS()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(s.Etcd.ClientCertFile, s.Etcd.ClientKeyFile)
		return &pair, err
	}
	return config
}

// shared are the files in the folder of the authorities that are the same on all servers
// of a cluster. Certificates signed with them are each server's own. The order matters:
// the files without which a server must not make certificates come last.
var shared = []string{
	serviceAccountKey, EncryptionKey,
	"etcd/peer-ca.key", "etcd/peer-ca.crt",
	"etcd/server-ca.key", "etcd/server-ca.crt",
	"request-header-ca.key", "request-header-ca.crt",
	"client-ca.key", "client-ca.crt",
	"server-ca.key", "server-ca.crt",
}

// Secrets returns the files that all servers of a cluster share, as far as they are here,
// by their paths in the folder of the authorities.
func Secrets(dir datadir.Dir) (map[string][]byte, error) {
	secrets := map[string][]byte{}
	for _, name := range shared {
		content, err := os.ReadFile(filepath.Join(dir.ServerTLS(), name))
		switch {
		case err == nil:
			secrets[name] = content
		case !os.IsNotExist(err):
			return nil, fmt.Errorf("read the cluster's secrets: %w", err)
		}
	}
	return secrets, nil
}

// SharedFiles are the paths, in the folder of the authorities, of the files that all
// servers of a cluster share. k3s has the same names for them, except EncryptionKey.
func SharedFiles() []string { return slices.Clone(shared) }

// KeepSecrets writes what Secrets returned on another server. It writes the servers'
// authority last, so if that is there, all files are.
func KeepSecrets(dir datadir.Dir, secrets map[string][]byte) error {
	if err := os.MkdirAll(dir.EtcdTLS(), 0o700); err != nil {
		return fmt.Errorf("make folder of etcd's certificates: %w", datadir.Explain(err))
	}
	for _, name := range shared {
		content, ok := secrets[name]
		if !ok {
			continue
		}
		mode := keyMode
		if filepath.Ext(name) == ".crt" {
			mode = certMode
		}
		if err := datadir.WriteFile(filepath.Join(dir.ServerTLS(), name), content, mode); err != nil {
			return err
		}
	}
	return nil
}
