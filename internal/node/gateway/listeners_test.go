package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestOneListener asks on connections of each listener for the hosts of each other one, with all
// versions of HTTP. A host is served on connections of its own listener, and nowhere else.
func TestOneListener(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	for _, l := range []routing.Listener{
		{Protocol: routing.HTTPS},
		{Protocol: routing.HTTPS, Hostname: "*.example.com"},
		{Protocol: routing.HTTPS, Hostname: "exact.example.com"},
		{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain},
		{Protocol: routing.HTTPS, Hostname: "lax.example.com", ClientAuthorities: known.Chain, AllowInsecureFallback: true},
		{Protocol: routing.TLSPassthrough, Hostname: "pass.example.com"},
		{Protocol: routing.TLSTerminate, Hostname: "end.example.com"},
		{Protocol: routing.TLSTerminate, Hostname: "*.tls.example.com"},
		{Protocol: routing.HTTPS, Hostname: "web.tls.example.com"},
	} {
		b.add(l)
	}
	b.apply()
	// The hosts that clients ask for, and whose they are.
	owners := map[string]string{
		"anything.test": "https ", "a.example.com": "https *.example.com", "b.a.example.com": "https *.example.com", "exact.example.com": "https exact.example.com",
		"secure.example.com": "https secure.example.com", "lax.example.com": "https lax.example.com", "pass.example.com": "", "end.example.com": "",
		"a.tls.example.com": "", "web.tls.example.com": "https web.tls.example.com",
	}
	for _, version := range versions {
		for serverName, owner := range owners {
			if owner == "" {
				b.wantNoHTTP(version, serverName)
				continue
			}
			for host, other := range owners {
				c, err := b.connect(version, serverName, pairOf(t, known))
				if err != nil {
					t.Fatalf("%s to %s: %v", version, serverName, err)
				}
				if c.listener != owner {
					t.Errorf("%s to %s: the listener %q answers, want %q", version, serverName, c.listener, owner)
				}
				status, text := c.get(t, host)
				if same := other == owner; same != (status == http.StatusOK && text == owner) || !same && status != http.StatusMisdirectedRequest {
					t.Errorf("%s: on a connection to %s, %s gets %d %q", version, serverName, host, status, text)
				}
				c.close()
			}
		}
	}
}

// wantNoHTTP fails the test if a server name of a listener of TLS gets HTTP.
func (b *both) wantNoHTTP(version, serverName string) {
	b.Helper()
	c, err := b.connect(version, serverName)
	if err != nil {
		return
	}
	defer c.close()
	// Where TLS ends without HTTP, the app hears what the client says.
	if status, text := c.get(b, serverName); version == "HTTP/3" || status == http.StatusOK && strings.HasPrefix(text, "https") {
		b.Errorf("%s to %s gets %d %q", version, serverName, status, text)
	}
}

// protect adds a listener for all hosts, and listeners for secure.example.com and the names below it. The latter want
// a certificate of known.
func (b *both) protect(known *routing.Certificate) {
	b.add(routing.Listener{Protocol: routing.HTTPS})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "*.secure.example.com", ClientAuthorities: known.Chain})
	b.apply()
}

// TestNamesInDisguise shakes hands with names that are no DNS names, or that somebody has written in
// another way, and asks for the host whose clients need a certificate.
func TestNamesInDisguise(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	b.protect(known)
	long := strings.Repeat("a.", 120)
	for _, version := range versions {
		for _, serverName := range []string{
			"secure.example.com:443", ".secure.example.com", "secure..example.com", "SECURE.example.com", "Secure.Example.Com:1", "*.secure.example.com",
			long + "secure.example.com", "secure.example.com/", "secure.example.com\x00", "a.secure.example.com:443", "..secure.example.com",
			"other.test", "",
		} {
			for _, host := range []string{"secure.example.com", "secure.example.com:443", "SECURE.example.com", "secure.example.com.", "a.secure.example.com"} {
				c, err := b.connect(version, serverName)
				if err != nil {
					continue // refused
				}
				if status, text := c.get(t, host); status == http.StatusOK || strings.Contains(text, "secure") {
					t.Errorf("%s to %q: without a certificate %s gets %d %q", version, serverName, host, status, text)
				}
				c.close()
			}
		}
		// Honest clients are served, however they write the name.
		for _, serverName := range []string{"secure.example.com", "SECURE.example.com"} {
			c, err := b.connect(version, serverName, pairOf(t, known))
			if err != nil {
				t.Errorf("%s to %s: %v", version, serverName, err)
				continue
			}
			for _, host := range []string{"secure.example.com", "Secure.example.com:443", "secure.example.com."} {
				if status, text := c.get(t, host); status != http.StatusOK {
					t.Errorf("%s to %s: with a certificate %s gets %d %q", version, serverName, host, status, text)
				}
			}
			c.close()
		}
	}
}

// retold is a connection on whose way a text in the ClientHello becomes another one of the same length.
// Go's client sends no server name that ends with a dot.
type retold struct {
	net.Conn
	from, to string
}

// Write implements net.Conn.
func (r *retold) Write(text []byte) (int, error) {
	return r.Conn.Write(bytes.ReplaceAll(text, []byte(r.from), []byte(r.to)))
}

// shownFor returns the listener whose certificate a server name gets, or "" if the handshake is refused
// before. The client checks its own hello, so no handshake succeeds.
func (b *both) shownFor(serverName string) (listener string, err error) {
	b.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	placeholder := strings.Repeat("x", len(serverName))
	// Before TLS 1.3, certificates are not encrypted.
	err = tls.Client(&retold{conn, placeholder, serverName}, &tls.Config{
		ServerName: placeholder, InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
		VerifyConnection: func(state tls.ConnectionState) error {
			listener = shownBy(state)
			return nil
		},
	}).HandshakeContext(b.Context())
	return listener, err
}

// TestNamesWithDots shakes hands with names that end with dots. Such a name gets an alert, or the
// certificate of the listener that the name has without its dot.
func TestNamesWithDots(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	b.protect(known)
	for serverName, owner := range map[string]string{
		"secure.example.com.": "https secure.example.com", "SECURE.example.com.": "https secure.example.com", "secure.example.com..": "", "secure.example.com:443.": "",
		"a.secure.example.com.": "https *.secure.example.com", "..........": "",
	} {
		listener, err := b.shownFor(serverName)
		if refused := new(net.OpError); listener == "" && (!errors.As(err, &refused) || refused.Op != "remote error") {
			t.Errorf("%q: there is neither an alert nor a certificate: %v", serverName, err)
		}
		if listener != "" && listener != owner {
			t.Errorf("the listener %q answers to %q, want %q or an alert", listener, serverName, owner)
		}
	}
	// The same client sees which listener answers to names without a dot at the end.
	for serverName, owner := range map[string]string{
		"secure.example.com": "https secure.example.com", "a.secure.example.com": "https *.secure.example.com", "other.example.com": "https ",
	} {
		if listener, err := b.shownFor(serverName); listener != owner {
			t.Errorf("the listener %q answers to %q, want %q: %v", listener, serverName, owner, err)
		}
	}
}

// TestLongestNames shakes hands with the longest name that DNS has, and with one that is a byte longer.
// Both have labels that DNS allows, so that only the length refuses the second one.
func TestLongestNames(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	b.protect(known)
	label := strings.Repeat("a", 63)
	tooLong := strings.Join([]string{label, label, label, label[:43], "secure.example.com"}, ".")
	if len(tooLong) != 254 {
		t.Fatalf("the name has %d bytes", len(tooLong))
	}
	longest := tooLong[1:]
	for _, version := range versions {
		if c, err := b.connect(version, tooLong, pairOf(t, known)); err == nil {
			t.Errorf("%s: the listener %q answers to a name of 254 bytes", version, c.listener)
			c.close()
		}
		c, err := b.connect(version, longest, pairOf(t, known))
		if err != nil {
			t.Fatalf("%s to a name of 253 bytes: %v", version, err)
		}
		for host, want := range map[string]int{longest: http.StatusOK, longest + ":443": http.StatusOK, tooLong: http.StatusBadRequest} {
			if status, text := c.get(t, host); status != want {
				t.Errorf("%s to a name of 253 bytes: a host of %d bytes gets %d %q, want %d", version, len(host), status, text, want)
			}
		}
		c.close()
	}
}

// TestChangedListeners changes the listeners while connections are open. A request is served only if
// its connection could be made now, and would lead to the same listener. Otherwise clients of
// HTTP/1.1 and HTTP/2 are asked to connect again.
func TestChangedListeners(t *testing.T) {
	testutil.CheckLeaks(t)
	known, other := selfSigned(t, "known"), selfSigned(t, "other")
	const host = "a.example.com"
	wide := routing.Listener{Protocol: routing.HTTPS, Hostname: "*.example.com"}
	strict, lax := wide, wide
	strict.ClientAuthorities, lax.ClientAuthorities, lax.AllowInsecureFallback = known.Chain, known.Chain, true
	exact, exactStrict, exactTLS, changed := wide, strict, wide, strict
	exact.Hostname, exactStrict.Hostname, exactTLS.Hostname, exactTLS.Protocol = host, host, host, routing.TLSTerminate
	changed.ClientAuthorities = other.Chain
	for _, test := range []struct {
		what          string
		before, after []routing.Listener
		want          int
	}{
		{"nothing changes", []routing.Listener{wide}, []routing.Listener{wide}, 200},
		{"the listener wants certificates", []routing.Listener{wide}, []routing.Listener{strict}, 421},
		{"the listener wants them without fallback", []routing.Listener{lax}, []routing.Listener{strict}, 421},
		{"the listener falls back", []routing.Listener{strict}, []routing.Listener{lax}, 200},
		{"the listener wants none any more", []routing.Listener{strict}, []routing.Listener{wide}, 200},
		{"the listener wants others", []routing.Listener{strict}, []routing.Listener{changed}, 421},
		{"a listener of its own", []routing.Listener{wide}, []routing.Listener{wide, exact}, 200},
		{"one of its own that wants certificates", []routing.Listener{wide}, []routing.Listener{wide, exactStrict}, 421},
		{"one of its own for TLS", []routing.Listener{wide}, []routing.Listener{wide, exactTLS}, 421},
		{"its own is gone", []routing.Listener{wide, exactStrict}, []routing.Listener{wide}, 200},
		{"its own is gone, and the rest wants certificates of others", []routing.Listener{wide, exactStrict}, []routing.Listener{changed}, 421},
		{"no listener is left", []routing.Listener{wide}, []routing.Listener{{Protocol: routing.HTTPS, Hostname: "other.test"}}, 404},
	} {
		t.Run(test.what, func(t *testing.T) {
			b := newBoth(t)
			set := func(all []routing.Listener) {
				for _, socket := range b.state.Sockets {
					socket.Listeners, socket.Reserved = nil, nil
				}
				for _, l := range all {
					b.add(l)
				}
				b.apply()
			}
			set(test.before)
			var clients []*client
			for _, version := range versions {
				c, err := b.connect(version, host, pairOf(t, known))
				if err != nil {
					t.Fatalf("%s: %v", version, err)
				}
				defer c.close()
				if status, text := c.get(t, host); status != http.StatusOK {
					t.Fatalf("%s before the change: %d %q", version, status, text)
				}
				clients = append(clients, c)
			}
			set(test.after)
			for i, c := range clients {
				if status, text := c.get(t, host); status != test.want {
					t.Errorf("%s after the change: %d %q, want %d", versions[i], status, text, test.want)
				}
			}
		})
	}
}
