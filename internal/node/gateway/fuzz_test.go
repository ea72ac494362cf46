package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// FuzzListener shakes hands with any server name, without a certificate of a client, and asks for any
// host. The app that answers is that of the listener that has answered the handshake.
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
		if strings.ContainsAny(host, "\r\n") {
			return // that would be another header
		}
		c, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))), &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
		if err != nil {
			return // the name is refused
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
			return
		}
		text, err := io.ReadAll(c)
		if err != nil || len(text) == 0 {
			return // the listener wants a certificate
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		if err != nil {
			t.Fatalf("%q for %q gets %q: %v", serverName, host, text, err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode == http.StatusOK && string(body) != shownBy(c.ConnectionState()) {
			t.Errorf("on a connection of %q for %q, the app of %q answers to %q", shownBy(c.ConnectionState()), serverName, body, host)
		}
		if strings.Contains(string(body), "secure") {
			t.Errorf("%q for %q gets %q without a certificate", serverName, host, body)
		}
	})
}
