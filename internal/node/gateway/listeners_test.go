package gateway

import (
	"net/http"
	"strings"
	"testing"

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

// TestNamesInDisguise shakes hands with names that are no DNS names, or that somebody has written in
// another way, and asks for the host whose clients need a certificate.
func TestNamesInDisguise(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	b.add(routing.Listener{Protocol: routing.HTTPS})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "*.secure.example.com", ClientAuthorities: known.Chain})
	b.apply()
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
