package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

func addresses(text ...string) []netip.Addr {
	var ips []netip.Addr
	for _, t := range text {
		ips = append(ips, netip.MustParseAddr(t))
	}
	return ips
}

func options(t *testing.T) ServerOptions {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Making an RSA key takes a second under the race detector.
	if _, err := writeKey(filepath.Join(dir.ServerTLS(), "service.key"), ecdsaKey); err != nil {
		t.Fatal(err)
	}
	return ServerOptions{
		Dir: dir, NodeName: "pi", NodeIPs: addresses("192.0.2.7", "2001:db8::7"),
		ClusterDomain: "cluster.local",
		ServiceCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd00:43::/112")},
		SANs:          []string{"api.example.org", "198.51.100.1", ""},
	}
}

func ensure(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	s, err := EnsureServer(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents reads every file of the PKI.
func contents(t *testing.T, o ServerOptions) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, folder := range []string{o.Dir.ServerTLS(), o.Dir.AgentTLS()} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[e.Name()] = string(text)
		}
	}
	return files
}

// changed returns the names of the files that differ.
func changed(before, after map[string]string) []string {
	var names []string
	for name, text := range after {
		if before[name] != text {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestEnsureServerMakesAll(t *testing.T) {
	o := options(t)
	remove(t, filepath.Join(o.Dir.ServerTLS(), "service.key"))
	s := ensure(t, o)
	tests := map[string]struct {
		ca    string
		usage x509.ExtKeyUsage
		cn    string
		group string
		names []string
	}{
		s.ServingCertFile: {s.ServerCAFile, x509.ExtKeyUsageServerAuth, "kube-apiserver", "", []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			"localhost", "127.0.0.1", "::1", "pi", "192.0.2.7", "2001:db8::7", "10.43.0.1", "fd00:43::1",
			"api.example.org", "198.51.100.1"}},
		s.KubeletServingCertFile: {s.ClientCAFile, x509.ExtKeyUsageServerAuth, "system:node:pi", "system:nodes,kedge:registration:server",
			[]string{"pi", "192.0.2.7", "2001:db8::7"}},
		s.KubeletClientCertFile:                 {s.ClientCAFile, x509.ExtKeyUsageClientAuth, KubeletClientUser, KubeletClientGroup, nil},
		s.ProxyClientCertFile:                   {s.RequestHeaderCAFile, x509.ExtKeyUsageClientAuth, ProxyClientUser, "", nil},
		o.Dir.ServerTLS() + "/client-admin.crt": {s.ClientCAFile, x509.ExtKeyUsageClientAuth, AdminUser, AdminGroup, nil},
	}
	for file, want := range tests {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if _, err := tls.LoadX509KeyPair(file, strings.TrimSuffix(file, ".crt")+".key"); err != nil {
				t.Fatal(err)
			}
			chain, err := readCertificates(file)
			if err != nil {
				t.Fatal(err)
			}
			ca, err := os.ReadFile(want.ca)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ca)
			// One second after the build's commit: the clock of a machine may be that early.
			for _, at := range []time.Time{version.CommitDate().Add(time.Second), time.Now(), time.Now().Add(364 * 24 * time.Hour)} {
				if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{want.usage}}); err != nil {
					t.Errorf("at %s: %v", at, err)
				}
			}
			if got := chain[0].Subject; got.CommonName != want.cn || strings.Join(got.Organization, ",") != want.group {
				t.Errorf("subject %s", got)
			}
			if got := sansOf(chain[0]); !got.equal(splitNames(want.names, nil)) {
				t.Errorf("names %v, want %v", got, want.names)
			}
		})
	}
	for name, mode := range map[string]os.FileMode{"server-ca.key": 0o600, "service.key": 0o600, "serving-kube-apiserver.key": 0o600, "server-ca.crt": 0o600} {
		if info, err := os.Stat(filepath.Join(o.Dir.ServerTLS(), name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: got mode %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
	for name, text := range contents(t, o) {
		if strings.Contains(text, "system:masters") {
			t.Errorf("%s has system:masters in it", name)
		}
	}
}

func TestEnsureServerAgain(t *testing.T) {
	tests := map[string]struct {
		// damage changes the files or the options after the first start.
		damage func(t *testing.T, o *ServerOptions, path func(string) string)
		// want are the files that the second start writes.
		want []string
		// fault is a part of the error that the second start ends with.
		fault string
	}{
		"nothing": {damage: func(*testing.T, *ServerOptions, func(string) string) {}},
		"killed before the CA's certificate": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { remove(t, path("client-ca.crt")) },
			want:   []string{"client-ca.crt", "kube-root-ca.crt"},
		},
		"killed before a leaf's certificate": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { remove(t, path("client-admin.crt")) },
			want:   []string{"client-admin.crt"},
		},
		"leaf key gone": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { remove(t, path("client-admin.key")) },
			want:   []string{"client-admin.crt", "client-admin.key"},
		},
		"leaf key corrupt": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				write(t, path("serving-kube-apiserver.key"), "rubbish")
			},
			want: []string{"serving-kube-apiserver.crt", "serving-kube-apiserver.key"},
		},
		"leaf of another key": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				copyFile(t, path("client-admin.crt"), path("client-auth-proxy.crt"))
			},
			want: []string{"client-auth-proxy.crt"},
		},
		"leaf corrupt": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				write(t, path("serving-kube-apiserver.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
			},
			want: []string{"serving-kube-apiserver.crt"},
		},
		"new tls-san": {
			damage: func(_ *testing.T, o *ServerOptions, _ func(string) string) {
				o.SANs = append(o.SANs, "more.example.org")
			},
			want: []string{"serving-kube-apiserver.crt"},
		},
		"new node address": {
			damage: func(_ *testing.T, o *ServerOptions, _ func(string) string) { o.NodeIPs = addresses("192.0.2.8") },
			want:   []string{"serving-kube-apiserver.crt", "serving-kubelet.crt"},
		},
		"CA of another key": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				copyFile(t, path("client-ca.key"), path("server-ca.key"))
			},
			fault: "server-ca.key is not the key of",
		},
		"CA corrupt": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				write(t, path("request-header-ca.crt"), "")
			},
			fault: "request-header-ca.crt",
		},
		"CA without key": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { remove(t, path("server-ca.key")) },
			fault:  "server-ca.crt has no key: put",
		},
		"CA key corrupt": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { write(t, path("client-ca.key"), "x") },
			fault:  "client-ca.key",
		},
		"CA that is none": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) {
				copyFile(t, path("client-admin.crt"), path("client-ca.crt"))
				copyFile(t, path("client-admin.key"), path("client-ca.key"))
			},
			fault: "client-ca.crt may not sign",
		},
		"service-account key corrupt": {
			damage: func(t *testing.T, _ *ServerOptions, path func(string) string) { write(t, path("service.key"), "x") },
			fault:  "service.key",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			// In a synctest bubble the clock stands still, so an authority that is made
			// twice has the same name.
			synctest.Test(t, func(t *testing.T) {
				o := options(t)
				ensure(t, o)
				test.damage(t, &o, func(name string) string { return filepath.Join(o.Dir.ServerTLS(), name) })
				before := contents(t, o)
				s, err := EnsureServer(o)
				after := contents(t, o)
				if test.fault != "" {
					if err == nil || !strings.Contains(err.Error(), test.fault) {
						t.Errorf("got error %v, want %q in it", err, test.fault)
					}
					if got := changed(before, after); got != nil {
						t.Errorf("got changed files %v after a failure, want none", got)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				// A damaged file counts as written if it is no longer as the damage left
				// it.
				if got := changed(before, after); !slices.Equal(got, test.want) {
					t.Errorf("wrote %v, want %v", got, test.want)
				}
				if _, err := tls.LoadX509KeyPair(s.ServingCertFile, s.ServingKeyFile); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestUsersOwnIntermediateAuthority(t *testing.T) {
	o := options(t)
	folder := o.Dir.ServerTLS()
	now := time.Now()
	root, err := ensureAuthority(filepath.Join(t.TempDir(), "root"), "root", now)
	if err != nil {
		t.Fatal(err)
	}
	intermediate, err := ensureAuthority(filepath.Join(folder, "server-ca"), "intermediate", now)
	if err != nil {
		t.Fatal(err)
	}
	// The root signs the intermediate again.
	template := intermediate.cert()
	template.Issuer, template.AuthorityKeyId = pkix.Name{}, nil
	der, err := x509.CreateCertificate(nil, template, root.cert(), intermediate.key.Public(), root.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, intermediate.certFile, string(encodeDER([][]byte{der, root.cert().Raw})))

	s := ensure(t, o)
	cert, err := s.ServingCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.Certificate) != 2 {
		t.Fatalf("the chain has %d certificates, want leaf and intermediate", len(cert.Certificate))
	}
	// A client that knows only the root can verify the chain.
	roots, chain := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root.cert())
	above, err := x509.ParseCertificate(cert.Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	chain.AddCert(above)
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: chain, DNSName: "kubernetes"}); err != nil {
		t.Error(err)
	}
	// Upstream's signers take only one certificate, that of the key.
	signer, err := readCertificates(s.ServerSignerFile)
	if err != nil || len(signer) != 1 || !matches(intermediate.key, signer[0]) {
		t.Errorf("the signer's file has %d certificates, %v", len(signer), err)
	}
	if s.ClientSignerFile != s.ClientCAFile {
		t.Errorf("an authority that is a root signs from %s", s.ClientSignerFile)
	}
	before := contents(t, o)
	ensure(t, o)
	if got := changed(before, contents(t, o)); got != nil {
		t.Errorf("the second start wrote %v", got)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(text))
}
