package pki

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRenewer lets a year pass on synctest's clock.
func TestRenewer(t *testing.T) {
	o := options(t)
	synctest.Test(t, func(t *testing.T) {
		s := ensure(t, o)
		kubeconfig := filepath.Join(t.TempDir(), "etc", "kedge.yaml")
		if err := s.WriteKubeconfig(kubeconfig, 0o600, "https://127.0.0.1:6443"); err != nil {
			t.Fatal(err)
		}
		firstKubeconfig, err := os.ReadFile(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		first := contents(t, o)
		// Without a Renewer up to here: so many empty looks take their time.
		time.Sleep(274 * 24 * time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Renewer().Run(ctx, func() {}) }()

		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := changed(first, contents(t, o)); got != nil {
			t.Errorf("with more than 90 days left it renewed %v", got)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		want := []string{"client-admin.crt", "client-auth-proxy.crt", "client-kube-apiserver.crt", "client-kubelet.crt", "serving-kube-apiserver.crt", "serving-kubelet.crt"}
		second := contents(t, o)
		if got := changed(first, second); !slices.Equal(got, want) {
			t.Errorf("with less than 90 days left it renewed %v, want %v", got, want)
		}
		cert, _ := s.ServingCertificate(nil)
		if string(encodeDER(cert.Certificate)) != second["serving-kube-apiserver.crt"] {
			t.Error("the certificate served is not the one in the file")
		}
		if now, err := os.ReadFile(kubeconfig); err != nil || bytes.Equal(now, firstKubeconfig) {
			t.Errorf("the kubeconfig was not rewritten: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLeafEndsWithItsAuthority: no renewal every hour when the authority ends.
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
		if err := s.renew(); err != nil {
			t.Fatal(err)
		}
		if got := changed(before, contents(t, o)); got != nil {
			t.Errorf("renewed %v again", got)
		}
	})
}
