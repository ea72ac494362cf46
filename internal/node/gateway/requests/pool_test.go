package requests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// issue returns a certificate. Without an authority it is one.
func (a *authority) issue(t *testing.T, change func(*x509.Certificate)) (tls.Certificate, *routing.Certificate, *authority) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	change(template)
	issuer, signer := template, key
	if a != nil {
		issuer, signer = a.certificate, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	of := &routing.Certificate{
		Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}
	pair, err := tls.X509KeyPair([]byte(of.Chain), []byte(of.Key))
	if err != nil {
		t.Fatal(err)
	}
	return pair, of, &authority{pair.Leaf, key}
}

// TestBackendTLS has cases of the conformance tests BackendTLSPolicy*, and of
// GatewayTLSBackendClientCertificate.
func TestBackendTLS(t *testing.T) {
	isAuthority := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }
	_, trusted, ca := (*authority)(nil).issue(t, isAuthority)
	_, other, _ := (*authority)(nil).issue(t, isAuthority)
	serving, _, _ := ca.issue(t, func(c *x509.Certificate) {
		c.DNSNames = []string{"abc.example.com", "*.wild.example.com"}
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "abc.example.com", Path: "/test"}}
	})
	_, client, _ := ca.issue(t, func(*x509.Certificate) {})

	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		to("/", "b"), with(to("/grpc", "b"), func(r *routing.Rule) { r.GRPC = true }),
	}})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Name", r.TLS.ServerName)
		rw.Header().Set("X-Proto", r.Proto)
		if len(r.TLS.PeerCertificates) > 0 {
			rw.Header().Set("X-Client", "shown")
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	w.state.Certificates = map[string]*routing.Certificate{"client": client}
	for name, test := range map[string]struct {
		routing.BackendTLS
		path, shown, proto string
		want               int
	}{
		"right name":             {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: trusted.Chain}, want: 200},
		"wildcard":               {BackendTLS: routing.BackendTLS{ServerName: "a.wild.example.com", Authorities: trusted.Chain}, want: 200},
		"wrong name":             {BackendTLS: routing.BackendTLS{ServerName: "other.example.com", Authorities: trusted.Chain}, want: 502},
		"wrong authority":        {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: other.Chain}, want: 502},
		"faulty authority":       {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: "none"}, want: 502},
		"authorities of host":    {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com"}, want: 502},
		"insecure":               {BackendTLS: routing.BackendTLS{ServerName: "x", Insecure: true}, want: 200},
		"other name":             {BackendTLS: routing.BackendTLS{ServerName: "x", Names: []string{"y", "abc.example.com"}, Authorities: trusted.Chain}, want: 200},
		"no other name":          {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Names: []string{"y"}, Authorities: trusted.Chain}, want: 502},
		"URI":                    {BackendTLS: routing.BackendTLS{ServerName: "x", URIs: []string{"spiffe://abc.example.com/test"}, Authorities: trusted.Chain}, want: 200},
		"wrong URI":              {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", URIs: []string{"spiffe://abc.example.com/other"}, Authorities: trusted.Chain}, want: 502},
		"one of several":         {BackendTLS: routing.BackendTLS{ServerName: "x", Names: []string{"y"}, URIs: []string{"spiffe://abc.example.com/test"}, Authorities: trusted.Chain}, want: 200},
		"URI of wrong authority": {BackendTLS: routing.BackendTLS{ServerName: "x", URIs: []string{"spiffe://abc.example.com/test"}, Authorities: other.Chain}, want: 502},
		"client certificate":     {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: trusted.Chain, ClientCertificate: "client"}, shown: "shown", want: 200},
		"unknown certificate":    {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: trusted.Chain, ClientCertificate: "x"}, want: 200},
		"HTTP/2":                 {BackendTLS: routing.BackendTLS{ServerName: "abc.example.com", Authorities: trusted.Chain}, path: "/grpc", proto: "HTTP/2.0", want: 200},
	} {
		w.state.Backends = map[string]*routing.Backend{"b": {Name: "b", Endpoints: []netip.AddrPort{address}, TLS: &test.BackendTLS}}
		w.set()
		got := w.ask("GET", "/"+test.path[min(1, len(test.path)):])
		if test.path != "" && got.Header.Get("X-Proto") != test.proto || test.path == "" && got.StatusCode == 200 && got.Header.Get("X-Proto") != "HTTP/1.1" {
			t.Errorf("%s: spoke %s", name, got.Header.Get("X-Proto"))
		}
		if got.StatusCode != test.want || got.Header.Get("X-Client") != test.shown || got.StatusCode == 200 && got.Header.Get("X-Name") != test.ServerName {
			t.Errorf("%s: got %d, %v", name, got.StatusCode, got.Header)
		}
	}
}
