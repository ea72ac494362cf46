package sockets

import (
	"crypto/tls"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestEncryptedBackend ends the TLS of clients, and speaks TLS with a backend that proves who it
// is and wants to know the gateway. It never sends anything to one that proves nothing.
func TestEncryptedBackend(t *testing.T) {
	w := newWorld(t, nil)
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	leaf := ca.leaf("backend.example")
	pair, err := tls.X509KeyPair([]byte(leaf.Chain), []byte(leaf.Key))
	must(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	must(t, err)
	serve(t, listener, "secured")
	w.state.Certificates["c"], w.state.Certificates["gateway"] = ca.leaf("a.example"), ca.leaf("gateway")
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{deadEndpoint(t), addrPortOf(listener)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("tls", routing.TCP, routing.Listener{Protocol: routing.TLSTerminate, Certificates: []string{"c"}, Routes: []string{"r"}})
	for _, test := range []struct {
		name     string
		security routing.BackendTLS
		served   bool
	}{
		{"the right authority", routing.BackendTLS{ServerName: "backend.example", Authorities: ca.pem, ClientCertificate: "gateway"}, true},
		{"another name", routing.BackendTLS{ServerName: "x", Names: []string{"backend.example"}, Authorities: ca.pem, ClientCertificate: "gateway"}, true},
		{"the wrong name", routing.BackendTLS{ServerName: "a.example", Authorities: ca.pem, ClientCertificate: "gateway"}, false},
		{"another authority", routing.BackendTLS{ServerName: "backend.example", Authorities: other.pem, ClientCertificate: "gateway"}, false},
		{"no certificate to show", routing.BackendTLS{ServerName: "backend.example", Authorities: ca.pem}, false},
	} {
		w.state.Backends["b"].TLS = &test.security
		w.apply()
		c, err := dialTLS(port, &tls.Config{ServerName: "a.example", RootCAs: ca.pool})
		must(t, err)
		if heard, err := hear(c, "hello"); (heard == "secured\nhello" && err == nil) != test.served || !test.served && heard != "" {
			t.Errorf("%s: heard %q, %v", test.name, heard, err)
		}
		_ = c.Close()
	}
	w.state.Backends["b"].TLS = nil
	w.apply()
	w.sockets.backends.mu.Lock()
	defer w.sockets.backends.mu.Unlock()
	if left := len(w.sockets.backends.all); left > 0 {
		t.Errorf("the settings of %d backends are left", left)
	}
}
