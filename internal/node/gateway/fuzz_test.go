package gateway

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// FuzzListener shakes hands with any server name, without a certificate of a client, and asks for any
// host with HTTP/1.1 and HTTP/2. The app that answers is that of the listener that has answered the handshake.
func FuzzListener(f *testing.F) {
	b := newBoth(f)
	known := selfSigned(f, "known")
	b.add(routing.Listener{Protocol: routing.HTTPS})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "*.example.com"})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain})
	b.add(routing.Listener{Protocol: routing.TLSPassthrough, Hostname: "pass.example.com"})
	b.apply()
	for _, name := range []string{"secure.example.com", "secure.example.com:443", ".secure.example.com", "SECURE.example.com.", "a.example.com", "pass.example.com", "", "other.test"} {
		for _, host := range []string{"secure.example.com", "secure.example.com.", "a.example.com:443", "pass.example.com", "x", "[::1]"} {
			f.Add(name, host)
		}
	}
	f.Fuzz(func(t *testing.T, serverName, host string) {
		for _, protocol := range []string{"http/1.1", "h2"} {
			c, err := b.secured(protocol, serverName)
			if err != nil {
				return // the name is refused
			}
			status, body, err := askFor(c, protocol, host)
			if err != nil {
				t.Errorf("%s: %q for %q: %v", protocol, serverName, host, err)
			}
			if status == http.StatusOK && body != shownBy(c.ConnectionState()) {
				t.Errorf("%s: on a connection of %q for %q, the app of %q answers to %q", protocol, shownBy(c.ConnectionState()), serverName, body, host)
			}
			if strings.Contains(body, "secure") {
				t.Errorf("%s: %q for %q gets %q without a certificate", protocol, serverName, host, body)
			}
			_ = c.Close()
		}
	})
}

// askFor asks for any host, and returns the status and the body of the answer. The status is 0 if the listener wants a client
// certificate, if HTTP/2 does not allow the host, or if the host has a line break. askFor does not send such a host in HTTP/1,
// because the listener would read two headers.
func askFor(c *tls.Conn, protocol, host string) (status int, body string, err error) {
	if protocol == "h2" {
		status, body, err = testutil.RawHTTP2(c, ":method", "GET", ":scheme", "https", ":path", "/", ":authority", host)
		if err != nil {
			return 0, "", nil
		}
		return status, body, nil
	}
	if strings.ContainsAny(host, "\r\n") {
		return 0, "", nil // that would be another header
	}
	return rawHTTP1(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
}
