package pki

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// join makes a server sign the certificates of a node called edge.
func join(t *testing.T, s *Server, n *Node, ips []netip.Addr) {
	t.Helper()
	requests, err := n.Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := s.SignNode(n.name, "uid", ips, requests)
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
	// An older node does not ask for these certificates.
	requests, err := n.Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	delete(requests, "client-loadbalancer")
	delete(requests, "client-gateway")
	if signed, err := s.SignNode("edge", "uid", ips, requests); err != nil || len(signed) != len(requests) {
		t.Errorf("of %d requests %d are signed: %v", len(requests), len(signed), err)
	}
	// An older kedge did not know this certificate.
	if err := os.Remove(n.file("client-storage") + ".crt"); err != nil {
		t.Fatal(err)
	}
	updated := NewNode(dir, "edge", nil)
	if err := updated.Load(); err != nil || !updated.WantsRenewal(ips) {
		t.Errorf("a node without a certificate that a new version needs: got %v, want that it renews", err)
	}
	if err := NewNode(dir, "other", nil).Load(); err == nil || !strings.Contains(err.Error(), "another node") {
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
			t.Errorf("key of %s: got mode %v, %v, want 0600", c.Name, info.Mode(), err)
		}
	}
}

// TestNodeReplacesKeys replaces the keys, with and without a kill -9 between certificates
// and keys.
// TestFormerNode finds the name of the node that a host was, as a server and as an agent.
func TestFormerNode(t *testing.T) {
	o := options(t)
	dir := options(t).Dir
	for _, dir := range []datadir.Dir{o.Dir, dir} {
		if name := FormerNode(dir); name != "" {
			t.Errorf("a new host was node %s", name)
		}
	}
	s := ensure(t, o)
	join(t, s, NewNode(dir, "edge", nil), addresses("192.0.2.9"))
	if name := FormerNode(o.Dir); name != o.NodeName {
		t.Errorf("the server was node %q", name)
	}
	if name := FormerNode(dir); name != "edge" {
		t.Errorf("the agent was node %q", name)
	}
}

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
	certificates, err := s.SignNode(n.name, "uid", ips, requests)
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
		t.Errorf("after a kill -9: got %v, want the new key", err)
	}
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
			signed, err := s.SignNode("edge", "uid", addresses("192.0.2.9"), requests)
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
		if err := checkNode(test.node, test.ips); (err == nil) != test.ok {
			t.Errorf("%s: got error %v, want accepted %t", name, err, test.ok)
		}
	}
}
