package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNodeCallsAServer checks that the server sees the user that a node calls as, and the
// node.
func TestNodeCallsAServer(t *testing.T) {
	s := ensure(t, options(t))
	n := NewNode(options(t).Dir, "edge", nil)
	join(t, s, n, addresses("192.0.2.9"))
	for _, c := range NodeCertificates("edge") {
		if c.Serving {
			continue
		}
		ours, theirs := net.Pipe()
		client := tls.Client(ours, n.TLS(c.User))
		server := tls.Server(theirs, &tls.Config{GetCertificate: s.ServingCertificate, ClientAuth: tls.RequestClientCert})
		fault := make(chan error, 1)
		go func() { fault <- client.Handshake() }()
		err := server.Handshake()
		if err := errors.Join(err, <-fault); err != nil {
			t.Fatalf("TLS handshake with the certificate %s: %v", c.Name, err)
		}
		chain := server.ConnectionState().PeerCertificates
		if got := chain[0].Subject; got.CommonName != c.User || !slices.Contains(got.Organization, "kedge:node:edge") {
			t.Errorf("%s calls as %s", c.Name, got)
		}
		node, err := s.NodeOf(chain)
		if isNode := c.Name == "client-kubelet"; isNode != (err == nil) || isNode != (node == "edge") {
			t.Errorf("%s is taken for node %q, %v", c.Name, node, err)
		}
		_, _ = ours.Close(), theirs.Close()
	}
}

// TestNodeTrusts makes a node call servers of all kinds. It accepts only those that
// crypto/tls would accept with the authorities as RootCAs.
func TestNodeTrusts(t *testing.T) {
	s, stranger := ensure(t, options(t)), ensure(t, options(t))
	n := NewNode(options(t).Dir, "edge", nil)
	join(t, s, n, addresses("192.0.2.9"))
	now := time.Now()
	for name, test := range map[string]struct {
		signer *authority
		usage  x509.ExtKeyUsage
		host   string
		at     time.Time
		want   string
	}{
		"a server":             {s.serverCA, x509.ExtKeyUsageServerAuth, APIName, now, ""},
		"a client":             {s.serverCA, x509.ExtKeyUsageClientAuth, APIName, now, "incompatible key usage"},
		"another name":         {s.serverCA, x509.ExtKeyUsageServerAuth, "other.example", now, "not " + APIName},
		"ended":                {s.serverCA, x509.ExtKeyUsageServerAuth, APIName, now.Add(-2 * leafValidity), "expired"},
		"of clients'":          {s.clientCA, x509.ExtKeyUsageServerAuth, APIName, now, "unknown authority"},
		"of another authority": {stranger.serverCA, x509.ExtKeyUsageServerAuth, APIName, now, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := ecdsaKey()
			if err != nil {
				t.Fatal(err)
			}
			chain, err := test.signer.sign(key.Public(), pkix.Name{CommonName: "kubernetes"}, []x509.ExtKeyUsage{test.usage}, splitNames([]string{test.host}, nil), test.at)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			for _, cert := range s.serverCA.bundle {
				roots.AddCert(cert)
			}
			standard := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: APIName, RootCAs: roots}
			for which, config := range map[string]*tls.Config{"the node": n.TLS(NodeUser("edge")), "crypto/tls": standard} {
				err := handshake(t, config, certificate(chain, key))
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: got %v, want %q", which, err, test.want)
				}
			}
		})
	}
}

// handshake returns a client's verdict on a server with a certificate. It does not use
// net.Pipe, because without a buffer both ends would write at the same time.
func handshake(t *testing.T, client *tls.Config, shown *tls.Certificate) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*shown}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), client)
	if err == nil {
		conn.Close()
	}
	return err
}

// A server calls other servers as any user, and their etcd as a server.
func TestServerCallsServers(t *testing.T) {
	o := options(t)
	o.Etcd = true
	s := ensure(t, o)
	shown := func(config *tls.Config) []*x509.Certificate {
		t.Helper()
		pair, err := config.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if config.ServerName != APIName || config.RootCAs == nil {
			t.Error("the TLS configuration of a client does not check the server's name and authority")
		}
		return []*x509.Certificate{leaf}
	}
	user := shown(s.UserTLS("system:kedge:dns", "b", "kedge:node:a"))
	if subject := user[0].Subject; subject.CommonName != "system:kedge:dns" || !slices.Equal(subject.Organization, []string{"b", "kedge:node:a", "kedge:registration:server"}) {
		t.Errorf("got subject %s, want system:kedge:dns with three groups", subject)
	}
	if err := s.checkClient(s.clientCA, user); err != nil {
		t.Error(err)
	}
	kubelets := s.KubeletTLS("system:kedge:metrics-server")
	pair, err := kubelets.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	caller, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || caller.Subject.CommonName != "system:kedge:metrics-server" || !slices.Equal(caller.Subject.Organization, []string{"kedge:registration:server"}) {
		t.Errorf("it calls kubelets as %v, %v", caller, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ClientCA())
	if kubelets.ServerName != "" || !kubelets.RootCAs.Equal(roots) {
		t.Error("it calls anybody as a kubelet")
	}
	etcd := shown(s.EtcdClientTLS())
	if err := s.CheckEtcdClient(etcd); err != nil {
		t.Error(err)
	}
	if s.CheckEtcdClient(user) == nil || s.CheckEtcdClient(nil) == nil || s.checkClient(s.clientCA, etcd) == nil {
		t.Error("a certificate of one authority is accepted for the other one")
	}
	if ensure(t, options(t)).CheckEtcdClient(etcd) == nil {
		t.Error("a server without etcd accepts a certificate of etcd's clients")
	}
}
