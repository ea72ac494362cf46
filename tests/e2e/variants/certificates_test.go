package variants

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestOwnAuthorities starts kedge with certificate authorities of the user's own, one of them an
// intermediate one. Then it changes what is in certificates: a name, the node's address, and the
// time of validity.
func TestOwnAuthorities(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	root := authority(t, "our root", nil)
	intermediate := authority(t, "our servers", root)
	clients := authority(t, "our clients", nil)
	for name, ca := range map[string]*certificate{
		"server-ca":         intermediate,
		"client-ca":         clients,
		"request-header-ca": authority(t, "our front proxies", nil),
	} {
		bundle := ca.certPEM()
		if ca == intermediate {
			bundle += root.certPEM()
		}
		host.WriteFile("/var/lib/kedge/server/tls/"+name+".crt", bundle)
		host.WriteFile("/var/lib/kedge/server/tls/"+name+".key", ca.keyPEM(t))
	}
	c := start(t, host)
	c.works()
	serving := served(t, host, root, net.JoinHostPort(host.Address.String(), "6443"), "kubernetes")
	if serving.Issuer.CommonName != "our servers" {
		t.Errorf("got issuer %s of the API's certificate, want \"our servers\"", serving.Issuer)
	}
	// Certificates of nodes are signed by the clients' authority.
	served(t, host, clients, net.JoinHostPort(host.Address.String(), "10250"), host.Name)
	admin := c.server.RESTConfig().CertData
	block, _ := pem.Decode(admin)
	if cert, err := x509.ParseCertificate(block.Bytes); err != nil || cert.Issuer.CommonName != "our clients" {
		t.Errorf("the administrator's certificate: %v, %v", cert.Issuer, err)
	}

	t.Run("a name is added", func(t *testing.T) {
		c := c.on(t)
		c.server.Terminate()
		c = start(t, host, "--tls-san=kedge.example.com", "--tls-san=192.0.2.44")
		for _, name := range []string{"kedge.example.com", "192.0.2.44", "kubernetes.default.svc.cluster.local", "10.43.0.1", "localhost"} {
			served(t, host, root, "127.0.0.1:6443", name)
		}
		c.works()
		c.server.Terminate()
	})
	if t.Failed() {
		return
	}

	t.Run("the node's address changes", func(t *testing.T) {
		busybox := harness.Busybox(t)
		for _, args := range []string{
			"ip addr flush dev eth0", "ip addr add 172.31.0.77/24 dev eth0", "ip route add default via 172.31.0.254",
		} {
			run(t, host, busybox, strings.Fields(args)...)
		}
		host.Address = netip.MustParseAddr("172.31.0.77")
		c := start(t, host)
		address := c.kubectl("get", "node", host.Name, "-o", "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}")
		if address != "172.31.0.77" {
			t.Errorf("the node's address is %s", address)
		}
		served(t, host, root, "172.31.0.77:6443", "172.31.0.77")
		served(t, host, clients, "172.31.0.77:10250", "172.31.0.77")
		if endpoints := c.kubectl("get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses}"); endpoints != `["172.31.0.77"]` {
			t.Errorf("the API's endpoints are %s", endpoints)
		}
		// exec and logs use the kubelet, and DNS its endpoint, at the new address.
		c.works()
		c.in("client", "/testserver", "fetch", "https://kubernetes.default/readyz")
		c.server.Terminate()
	})
	if t.Failed() {
		return
	}

	t.Run("certificates are about to end", func(t *testing.T) {
		tlsFolder, agentFolder := host.Path("/var/lib/kedge/server/tls/"), host.Path("/var/lib/kedge/agent/tls/")
		leaves := map[string]string{
			tlsFolder + "/serving-kube-apiserver": "server-ca",
			agentFolder + "/serving-kubelet":      "server-ca",
			tlsFolder + "/client-admin":           "client-ca",
			tlsFolder + "/client-kube-apiserver":  "client-ca",
			tlsFolder + "/client-auth-proxy":      "request-header-ca",
		}
		soon := time.Now().AddDate(0, 0, 30)
		for leaf, ca := range leaves {
			shorten(t, leaf, tlsFolder+"/"+ca, soon)
		}
		c := start(t, host)
		for leaf := range leaves {
			if end := readCertificates(t, leaf+".crt")[0].NotAfter; end.Before(soon.AddDate(0, 6, 0)) {
				t.Errorf("%s was not renewed: it ends on %s", leaf, end)
			}
		}
		c.works()
		if serving := served(t, host, root, "127.0.0.1:6443", "localhost"); serving.NotAfter.Before(soon.AddDate(0, 6, 0)) {
			t.Errorf("the API's certificate ends on %s", serving.NotAfter)
		}
	})
}

// served connects to a server on the host, and checks that its certificate is valid for name for a
// client that knows only root. It returns the certificate.
func served(t *testing.T, host *harness.Host, root *certificate, address, name string) *x509.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	plain, err := host.DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate)
	conn := tls.Client(plain, &tls.Config{ServerName: name, RootCAs: roots})
	if err := conn.HandshakeContext(ctx); err != nil {
		t.Fatalf("certificate of %s for %s: %v", address, name, err)
	}
	return conn.ConnectionState().PeerCertificates[0]
}

// shorten signs a certificate again, so that it ends at end and began a year earlier.
func shorten(t *testing.T, leaf, ca string, end time.Time) {
	t.Helper()
	chain, issuer := readCertificates(t, leaf+".crt"), readCertificates(t, ca+".crt")[0]
	template := *chain[0]
	template.NotBefore, template.NotAfter, template.SerialNumber = end.AddDate(-1, 0, 0), end, big.NewInt(end.Unix())
	der, err := x509.CreateCertificate(rand.Reader, &template, issuer, readKey(t, leaf+".key").Public(), readKey(t, ca+".key"))
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, above := range chain[1:] {
		text = slices.Concat(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: above.Raw}))
	}
	if err := os.WriteFile(leaf+".crt", text, 0o644); err != nil {
		t.Fatal(err)
	}
}
