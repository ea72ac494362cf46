package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRenew lets a year pass on synctest's clock.
func TestRenew(t *testing.T) {
	o := options(t)
	synctest.Test(t, func(t *testing.T) {
		s := ensure(t, o)
		kubeconfig := filepath.Join(t.TempDir(), "etc", "kedge.yaml")
		if err := s.WriteKubeconfig(KubeconfigFile{Path: kubeconfig, Mode: 0o600, Server: "https://127.0.0.1:6443"}); err != nil {
			t.Fatal(err)
		}
		firstKubeconfig, err := os.ReadFile(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		first := contents(t, o)
		renew := func() {
			t.Helper()
			if _, err := s.Renew(false); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Until(s.Due()) - time.Minute)
		renew()
		if got := changed(first, contents(t, o)); got != nil || time.Until(s.Due()) != time.Minute {
			t.Errorf("a minute before it is due it renewed %v", got)
		}
		time.Sleep(time.Minute)
		renew()
		want := []string{"client-admin.crt", "client-auth-proxy.crt", "client-kube-apiserver.crt", "client-kubelet.crt", "serving-kube-apiserver.crt", "serving-kubelet.crt"}
		second := contents(t, o)
		if got := changed(first, second); !slices.Equal(got, want) {
			t.Errorf("with 90 days left it renewed %v, want %v", got, want)
		}
		if left := time.Until(s.Due()).Round(time.Hour); left != leafValidity-RenewBefore {
			t.Errorf("due again in %s", left)
		}
		cert, _ := s.ServingCertificate(nil)
		if string(encodeDER(cert.Certificate)) != second["serving-kube-apiserver.crt"] {
			t.Error("the certificate served is not the one in the file")
		}
		if now, err := os.ReadFile(kubeconfig); err != nil || bytes.Equal(now, firstKubeconfig) {
			t.Errorf("the kubeconfig was not rewritten: %v", err)
		}
	})
}

// TestRenewAll replaces the keys too.
func TestRenewAll(t *testing.T) {
	o := options(t)
	s := ensure(t, o)
	before := contents(t, o)
	files, err := s.Renew(true)
	if err != nil || len(files) != 6 {
		t.Fatalf("got renewed %v, %v, want 6 files", files, err)
	}
	after := contents(t, o)
	got := changed(before, after)
	if len(got) != 12 || len(after) != len(before) {
		t.Errorf("changed %v", got)
	}
	for name := range before {
		if strings.Contains(name, "-ca.") && slices.Contains(got, name) {
			t.Errorf("%s is another one", name)
		}
	}
	// A kill -9 came between a key and its certificate.
	key := s.servingLeaf.keyFile
	if err := os.WriteFile(key, []byte(before[filepath.Base(key)]), 0o600); err != nil {
		t.Fatal(err)
	}
	again := ensure(t, o)
	cert, _ := again.ServingCertificate(nil)
	if _, err := tls.LoadX509KeyPair(again.ServingCertFile, again.ServingKeyFile); err != nil || !matches(cert.PrivateKey.(crypto.Signer), cert.Leaf) {
		t.Errorf("the pair that was torn apart: %v", err)
	}
}

// TestShortLife: a certificate with a shorter life than kedge's own is renewed in the
// last quarter of its life.
func TestShortLife(t *testing.T) {
	o := options(t)
	synctest.Test(t, func(t *testing.T) {
		s := ensure(t, o)
		now := time.Now()
		signer := s.servingLeaf.signer
		key, err := readKey(s.servingLeaf.keyFile)
		if err != nil {
			t.Fatal(err)
		}
		cert := s.serving.Load().Leaf
		cert.NotBefore, cert.NotAfter = now, now.Add(4*time.Minute)
		der, err := x509.CreateCertificate(rand.Reader, cert, signer.cert(), key.Public(), signer.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.ServingCertFile, encodeDER([][]byte{der}), 0o600); err != nil {
			t.Fatal(err)
		}
		s = ensure(t, o)
		if left := time.Until(s.Due()); left != 3*time.Minute {
			t.Fatalf("due in %s", left)
		}
		if s.Aging([]*x509.Certificate{cert}) {
			t.Error("a certificate that clients of kedge do not have is taken for one of theirs")
		}
		time.Sleep(3 * time.Minute)
		if files, err := s.Renew(false); err != nil || !slices.Equal(files, []string{s.ServingCertFile}) {
			t.Errorf("got renewed %v, %v, want the serving certificate alone", files, err)
		}
	})
}

// TestAging: only a client that should have renewed is told to connect again.
func TestAging(t *testing.T) {
	o := options(t)
	synctest.Test(t, func(t *testing.T) {
		s := ensure(t, o)
		node, admin := []*x509.Certificate{s.node.Load().Leaf}, []*x509.Certificate{s.admin.Load().Leaf}
		time.Sleep(time.Until(s.Due()) + 40*24*time.Hour)
		if s.Aging(node) {
			t.Error("aging before half of the time for renewal is over")
		}
		time.Sleep(10 * 24 * time.Hour)
		if !s.Aging(node) || s.Aging(admin) || s.Aging(nil) {
			t.Error("Aging: want true for the node's certificate, and false for the others")
		}
	})
}

// TestLeafEndsWithItsAuthority: a leaf that expires with its authority is not renewed
// every hour.
func TestLeafEndsWithItsAuthority(t *testing.T) {
	o := options(t)
	synctest.Test(t, func(t *testing.T) {
		ensure(t, o)
		time.Sleep(authorityValidity - 30*24*time.Hour)
		s := ensure(t, o)
		cert, _ := s.ServingCertificate(nil)
		if !cert.Leaf.NotAfter.Equal(s.serverCA.cert().NotAfter) {
			t.Errorf("leaf ends %s, its authority %s", cert.Leaf.NotAfter, s.serverCA.cert().NotAfter)
		}
		before := contents(t, o)
		if _, err := s.Renew(false); err != nil {
			t.Fatal(err)
		}
		if got := changed(before, contents(t, o)); got != nil {
			t.Errorf("got renewed %v, want nothing for the second time", got)
		}
	})
}
