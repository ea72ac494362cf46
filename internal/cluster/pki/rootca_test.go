package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pods is a file with ca.crt, which pods trust.
type pods struct{ file string }

// verify makes Go and OpenSSL verify a server's chain under a name or an address, as pods
// with ca.crt do.
func (p pods) verify(t *testing.T, chain []*x509.Certificate, name string) error {
	t.Helper()
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	text, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(text)
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	host, flag := name, "-verify_hostname"
	if _, err := netip.ParseAddr(name); err == nil {
		host, flag = "["+name+"]", "-verify_ip"
	}
	_, inGo := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: host})

	leaf, above := filepath.Join(t.TempDir(), "leaf.crt"), filepath.Join(t.TempDir(), "above.crt")
	write(t, leaf, string(encodeCertificates(chain[0])))
	write(t, above, string(encodeCertificates(chain[1:]...)))
	args := []string{"verify", "-CAfile", p.file, "-purpose", "sslserver", flag, name}
	if len(chain) > 1 {
		args = append(args, "-untrusted", above)
	}
	output, inOpenSSL := exec.Command("openssl", append(args, leaf)...).CombinedOutput()
	if inOpenSSL != nil {
		inOpenSSL = fmt.Errorf("openssl: %w: %s", inOpenSSL, output)
	}
	if (inGo == nil) != (inOpenSSL == nil) {
		t.Errorf("%s: Go says %v, OpenSSL %v", name, inGo, inOpenSSL)
	}
	return errors.Join(inGo, inOpenSSL)
}

// served returns the chain of a server's certificate, signed by an authority for names.
func served(t *testing.T, a *authority, names ...string) []*x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.sign(key.Public(), pkix.Name{CommonName: NodeUser("edge"), Organization: []string{NodesGroup}},
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, splitNames(names, nil), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

func TestPodsTrust(t *testing.T) {
	// The kinds of authorities: the default, RSA, an elliptic curve with its own hash,
	// and one that another authority has signed.
	for name, bring := range map[string]func(t *testing.T, path string){
		"kedge's own": func(*testing.T, string) {},
		"RSA":         func(t *testing.T, path string) { bring(t, path, rsaKey) },
		"P-384": func(t *testing.T, path string) {
			bring(t, path, func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) })
		},
		"below another": bringIntermediate,
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			bring(t, filepath.Join(o.Dir.ServerTLS(), "client-ca"))
			s := ensure(t, o)
			trust := pods{s.RootCAFile}
			api, err := readCertificates(s.ServingCertFile)
			if err != nil {
				t.Fatal(err)
			}
			n := NewNode(options(t).Dir, "edge", nil)
			join(t, s, n, addresses("192.0.2.9", "2001:db8::9"))
			node, err := readCertificates(n.ServingCertFile())
			if err != nil {
				t.Fatal(err)
			}
			own, err := readCertificates(s.KubeletServingCertFile)
			if err != nil {
				t.Fatal(err)
			}
			for name, chain := range map[string][]*x509.Certificate{
				"kubernetes.default.svc": api, "10.43.0.1": api, "fd00:43::1": api, "192.0.2.7": own, "pi": own,
				"192.0.2.9": node, "2001:db8::9": node, "edge": node,
			} {
				if err := trust.verify(t, chain, name); err != nil {
					t.Errorf("verify the certificate of %s: %v", name, err)
				}
			}
			for _, name := range []string{
				"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
				"web.team.svc", "web.team.svc.cluster.local", "localhost", "127.0.0.1", "127.1.2.3", "::1", "10.43.0.1", "10.43.200.7", "fd00:43::1",
			} {
				if err := trust.verify(t, served(t, s.clientCA, name), name); err == nil {
					t.Errorf("a node's certificate passes for %s", name)
				} else if text := err.Error(); !strings.Contains(text, "excluded") {
					t.Errorf("a node's certificate for %s: got error %v, want that the name is excluded", name, err)
				}
				// The certificate's other names do not help.
				if err := trust.verify(t, served(t, s.clientCA, "edge", name), "edge"); err == nil {
					t.Errorf("a certificate for %s passes for edge", name)
				}
			}
			// Clients' certificates do not pass for servers'.
			client, err := readCertificates(n.file("client-kubelet") + ".crt")
			if err != nil {
				t.Fatal(err)
			}
			if err := trust.verify(t, client, "edge"); err == nil {
				t.Error("a client's certificate passes for a server's")
			}
			// Clients that trust only the API server's authority see no difference.
			if strings.Contains(string(s.ServerCA()), string(encodeCertificates(s.clientCA.cert()))) {
				t.Error("clients outside are told the authority of clients")
			}
		})
	}
}

// TestRootCAIsTheSame compares all servers, and every start.
func TestRootCAIsTheSame(t *testing.T) {
	for name, key := range map[string]func() (crypto.Signer, error){"ECDSA": ecdsaKey, "RSA": rsaKey} {
		t.Run(name, func(t *testing.T) {
			first, second := options(t), options(t)
			bring(t, filepath.Join(first.Dir.ServerTLS(), "client-ca"), key)
			s := ensure(t, first)
			for _, file := range []string{"server-ca.crt", "server-ca.key", "client-ca.crt", "client-ca.key"} {
				copyFile(t, filepath.Join(first.Dir.ServerTLS(), file), filepath.Join(second.Dir.ServerTLS(), file))
			}
			second.NodeName, second.NodeIPs, second.SANs = "other", addresses("192.0.2.8"), nil
			other := ensure(t, second)
			one, errOne := os.ReadFile(s.RootCAFile)
			two, errTwo := os.ReadFile(other.RootCAFile)
			if err := errors.Join(errOne, errTwo); err != nil || string(one) != string(two) {
				t.Errorf("%v, or two servers tell\n%s\nand\n%s", err, one, two)
			}
			second.ServiceCIDRs = second.ServiceCIDRs[:1]
			if changed, err := os.ReadFile(ensure(t, second).RootCAFile); err != nil || string(changed) == string(two) {
				t.Errorf("%v, or it stays when the ranges of Services change", err)
			}
		})
	}
}

// TestPodsTrustWhileAuthoritiesAreReplaced checks nodes that have followed and nodes that
// have not, with the current ca.crt and the earlier one.
func TestPodsTrustWhileAuthoritiesAreReplaced(t *testing.T) {
	o := options(t)
	s := ensure(t, o)
	before := pods{filepath.Join(t.TempDir(), "ca.crt")}
	copyFile(t, s.RootCAFile, before.file)
	n := NewNode(options(t).Dir, "edge", nil)
	renew := func(s *Server) []*x509.Certificate {
		t.Helper()
		join(t, s, n, addresses("192.0.2.9"))
		chain, err := readCertificates(n.ServingCertFile())
		if err != nil {
			t.Fatal(err)
		}
		return chain
	}
	old := renew(s)
	oldCA := s.clientCA
	// The name of an authority has the second in which it was made.
	if err := PrepareAuthorities(o.Dir, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	between := restarted(t, o)
	now := pods{between.RootCAFile}
	followed := renew(between)
	if err := errors.Join(now.verify(t, old, "192.0.2.9"), now.verify(t, followed, "192.0.2.9"), before.verify(t, followed, "192.0.2.9")); err != nil {
		t.Error(err)
	}
	for _, a := range []*authority{oldCA, between.clientCA} {
		if err := now.verify(t, served(t, a, APIName), APIName); err == nil {
			t.Error("a node's certificate passes for the API's")
		}
	}
	if err := before.verify(t, served(t, between.clientCA, APIName), APIName); err == nil {
		t.Error("clients that know only the old authority take a node's certificate for the API's")
	}
	if err := DropAuthorities(o.Dir); err != nil {
		t.Fatal(err)
	}
	after := restarted(t, o)
	now = pods{after.RootCAFile}
	if err := now.verify(t, renew(after), "192.0.2.9"); err != nil {
		t.Error(err)
	}
	if err := now.verify(t, old, "192.0.2.9"); err == nil {
		t.Error("the old authority is trusted yet")
	}
}

// TestSignNodeRefuses tries names and addresses of the API and of the server itself.
func TestSignNodeRefuses(t *testing.T) {
	s := ensure(t, options(t))
	requests, err := NewNode(options(t).Dir, "edge", nil).Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ node, address, want string }{
		{"edge", "192.0.2.9", ""},
		{"edge.example.org", "10.44.0.1", ""},
		{"svc.example.org", "2001:db8::9", ""},
		{"192.0.2.9", "192.0.2.9", ""},
		{"192.0.2.20", "192.0.2.9", "--node-name"},
		{"kubernetes", "192.0.2.9", "--node-name"},
		{"kubernetes.default", "192.0.2.9", "--node-name"},
		{"kubernetes.default.svc", "192.0.2.9", "--node-name"},
		{"kubernetes.default.svc.cluster.local", "192.0.2.9", "--node-name"},
		{"metrics-server.kube-system.svc", "192.0.2.9", "--node-name"},
		{"localhost", "192.0.2.9", "--node-name"},
		{"pi", "192.0.2.9", "--node-name"},
		{"api.example.org", "192.0.2.9", "--node-name"},
		{"edge", "192.0.2.7", "--node-ip"},
		{"edge", "2001:db8::7", "--node-ip"},
		{"edge", "198.51.100.1", "--node-ip"},
		{"edge", "10.43.0.1", "--node-ip"},
		{"edge", "10.43.7.7", "--node-ip"},
		{"edge", "fd00:43::1", "--node-ip"},
	} {
		_, err := s.SignNode(test.node, "uid", addresses(test.address), requests)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: %v, want %q in it", test.node, test.address, err, test.want)
		}
	}
}

// bring puts an authority with a key of a kind in path.crt and path.key.
func bring(t *testing.T, path string, key func() (crypto.Signer, error)) {
	t.Helper()
	if _, err := writeKey(path+".key", key); err != nil {
		t.Fatal(err)
	}
	if _, err := ensureAuthority(path, "own", time.Now()); err != nil {
		t.Fatal(err)
	}
}

// bringIntermediate puts an authority there that another authority has signed.
func bringIntermediate(t *testing.T, path string) {
	t.Helper()
	root, err := ensureAuthority(filepath.Join(t.TempDir(), "root"), "root", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	intermediate, err := ensureAuthority(path, "intermediate", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	signed, err := cross(intermediate.cert(), root.cert(), root.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path+".crt", string(encodeCertificates(signed, root.cert())))
}
