package pki

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// join has a server sign the certificates of a node called edge.
func join(t *testing.T, s *Server, n *Node, ips []netip.Addr) {
	t.Helper()
	requests, err := n.Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := s.SignNode(n.name, ips, requests)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Accept(s.ServerCA(), s.ClientCA(), certificates); err != nil {
		t.Fatal(err)
	}
}

func TestNodeJoins(t *testing.T) {
	s := ensure(t, options(t))
	dir, ips := options(t).Dir, addresses("192.0.2.9", "2001:db8::9")
	n := NewNode(dir, "edge", nil)
	if err := n.Load(); !errors.Is(err, ErrNotJoined) {
		t.Errorf("before: %v", err)
	}
	join(t, s, n, ips)

	again := NewNode(dir, "edge", nil)
	if err := again.Load(); err != nil {
		t.Fatal(err)
	}
	if again.Ended() || again.WantsRenewal(ips) {
		t.Error("new certificates are called old")
	}
	if !again.WantsRenewal(ips[:1]) {
		t.Error("nothing is renewed for another address")
	}
	// Of an older kedge, which did not know of this one.
	if err := os.Remove(n.file("client-storage") + ".crt"); err != nil {
		t.Fatal(err)
	}
	updated := NewNode(dir, "edge", nil)
	if err := updated.Load(); err != nil || !updated.WantsRenewal(ips) {
		t.Errorf("without a certificate that is new: %v, or it is not asked for", err)
	}
	if err := NewNode(dir, "other", nil).Load(); err == nil || !strings.Contains(err.Error(), "of another node") {
		t.Errorf("under another name: %v", err)
	}

	serving, err := readCertificates(n.ServingCertFile())
	if err != nil {
		t.Fatal(err)
	}
	if !sansOf(serving[0]).equal(splitNames([]string{"edge"}, ips)) {
		t.Errorf("serves as %v", sansOf(serving[0]))
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ServerCA())
	if _, err := serving[0].Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("clients of the API trust a node's certificate")
	}
	for _, c := range NodeCertificates("edge") {
		if info, err := os.Stat(n.file(c.Name) + ".key"); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", c.Name, info.Mode(), err)
		}
	}
}

// TestNodeReplacesKeys, also if a kill -9 comes between certificates and keys.
func TestNodeReplacesKeys(t *testing.T) {
	s := ensure(t, options(t))
	dir, ips := options(t).Dir, addresses("192.0.2.9")
	n := NewNode(dir, "edge", nil)
	join(t, s, n, ips)
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	old := read(n.ServingKeyFile())
	requests, err := n.Requests(true)
	if err != nil {
		t.Fatal(err)
	}
	if read(n.ServingKeyFile()) != old || n.Load() != nil {
		t.Error("the old key is gone before the new one has a certificate")
	}
	certificates, err := s.SignNode(n.name, ips, requests)
	if err != nil {
		t.Fatal(err)
	}
	serving := n.file("serving-kubelet")
	next := read(serving + ".key.next")
	if err := n.Accept(s.ServerCA(), s.ClientCA(), certificates); err != nil {
		t.Fatal(err)
	}
	if key := read(n.ServingKeyFile()); key != next {
		t.Error("the key was not replaced")
	}
	if err := os.WriteFile(n.ServingKeyFile(), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(serving+".key.next", []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewNode(dir, "edge", nil).Load(); err != nil || read(n.ServingKeyFile()) != next {
		t.Errorf("after a kill -9: %v, or the key is the old one", err)
	}
}

// TestNodeCallsAServer: whoever it calls as, the server sees that and the node.
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
			t.Fatalf("%s: %v", c.Name, err)
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

// TestNodeTrusts has a node call what says to be a server, and take only what
// crypto/tls would take with the authorities as RootCAs.
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

// handshake returns what a client says of a server with a certificate. net.Pipe would
// not do: with nothing in between, both would write at the same time.
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

func TestSignNodeTakesOnlyTheKey(t *testing.T) {
	s := ensure(t, options(t))
	n := NewNode(options(t).Dir, "edge", nil)
	good, err := n.Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsaKey()
	if err != nil {
		t.Fatal(err)
	}
	greedy, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "kubernetes", Organization: []string{"system:masters"}},
		DNSNames: []string{APIName},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	otherKind, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, other)
	if err != nil {
		t.Fatal(err)
	}
	forged := slices.Clone(good["client-kubelet"])
	forged[len(forged)-1] ^= 1
	for name, test := range map[string]struct {
		request []byte
		ok      bool
	}{
		"greedy":           {greedy, true},
		"none":             {nil, false},
		"not a request":    {[]byte("request"), false},
		"of another kind":  {otherKind, false},
		"of another's key": {forged, false},
	} {
		t.Run(name, func(t *testing.T) {
			requests := map[string][]byte{}
			for name, request := range good {
				requests[name] = request
			}
			requests["client-kubelet"] = test.request
			signed, err := s.SignNode("edge", addresses("192.0.2.9"), requests)
			if (err == nil) != test.ok {
				t.Fatal(err)
			}
			if !test.ok {
				return
			}
			chain, err := parseCertificates(signed["client-kubelet"])
			if err != nil {
				t.Fatal(err)
			}
			if got := chain[0]; got.Subject.CommonName != "system:node:edge" || slices.Contains(got.Subject.Organization, "system:masters") || len(got.DNSNames) > 0 {
				t.Errorf("signed %s for %v", got.Subject, got.DNSNames)
			}
		})
	}
}

func TestNodeOf(t *testing.T) {
	s, stranger := ensure(t, options(t)), ensure(t, options(t))
	sign := func(s *Server, usage x509.ExtKeyUsage, cn string, groups ...string) []*x509.Certificate {
		key, err := ecdsaKey()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := s.clientCA.sign(key.Public(), pkix.Name{CommonName: cn, Organization: groups}, []x509.ExtKeyUsage{usage}, sans{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return chain
	}
	const client = x509.ExtKeyUsageClientAuth
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  string
	}{
		"node":                 {sign(s, client, "system:node:edge", NodesGroup), "edge"},
		"none":                 {nil, ""},
		"of another authority": {sign(stranger, client, "system:node:edge", NodesGroup), ""},
		"not in the group":     {sign(s, client, "system:node:edge", "kedge:node:edge"), ""},
		"not a node":           {sign(s, client, AdminUser, AdminGroup, NodesGroup), ""},
		"short":                {sign(s, client, "system", NodesGroup), ""},
		"without a name":       {sign(s, client, "system:node:", NodesGroup), ""},
		"serving":              {sign(s, x509.ExtKeyUsageServerAuth, "system:node:edge", NodesGroup), ""},
	} {
		if got, err := s.NodeOf(test.chain); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestNodeCertificatesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ensure(t, options(t))
		n, ips := NewNode(options(t).Dir, "edge", nil), addresses("192.0.2.9")
		join(t, s, n, ips)
		chain := n.current.Load().clients[NodeUser("edge")].Leaf
		time.Sleep(leafValidity - RenewBefore + time.Hour)
		if !n.WantsRenewal(ips) || n.Ended() {
			t.Error("three months before the end nothing is renewed")
		}
		time.Sleep(RenewBefore)
		if _, err := s.NodeOf([]*x509.Certificate{chain}); !n.Ended() || err == nil {
			t.Errorf("the end is not noticed: %v", err)
		}
		join(t, s, n, ips)
		if n.Ended() || n.WantsRenewal(ips) {
			t.Error("the renewal is not noticed")
		}
	})
}

func TestCheckNode(t *testing.T) {
	for name, test := range map[string]struct {
		node string
		ips  []netip.Addr
		ok   bool
	}{
		"good":              {"edge", addresses("192.0.2.9"), true},
		"dual-stack":        {"edge-1.example.org", addresses("192.0.2.9", "2001:db8::9"), true},
		"no name":           {"", addresses("192.0.2.9"), false},
		"name with a slash": {"../edge", addresses("192.0.2.9"), false},
		"no address":        {"edge", nil, false},
		"three":             {"edge", addresses("192.0.2.9", "192.0.2.8", "192.0.2.7"), false},
		"loopback":          {"edge", addresses("127.0.0.1"), false},
		"zero":              {"edge", []netip.Addr{{}}, false},
	} {
		if err := CheckNode(test.node, test.ips); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server calls others as whoever it says, and their etcd as a server.
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
			t.Error("it calls anybody")
		}
		return []*x509.Certificate{leaf}
	}
	user := shown(s.UserTLS("system:kedge:dns", "b", "kedge:node:a"))
	if subject := user[0].Subject; subject.CommonName != "system:kedge:dns" || !slices.Equal(subject.Organization, []string{"b", "kedge:node:a"}) {
		t.Errorf("it calls as %s", subject)
	}
	if err := s.checkClient(s.clientCA, user); err != nil {
		t.Error(err)
	}
	etcd := shown(s.EtcdClientTLS())
	if err := s.CheckEtcdClient(etcd); err != nil {
		t.Error(err)
	}
	if s.CheckEtcdClient(user) == nil || s.CheckEtcdClient(nil) == nil || s.checkClient(s.clientCA, etcd) == nil {
		t.Error("one authority's certificates pass for the other's")
	}
	if ensure(t, options(t)).CheckEtcdClient(etcd) == nil {
		t.Error("a server without etcd takes its clients")
	}
}
