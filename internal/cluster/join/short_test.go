package join

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func TestParseConfigured(t *testing.T) {
	pin := tokenPrefix + strings.Repeat("0a", 32)
	for text, test := range map[string]struct {
		want Token
		// fault is a part of the error with a short token allowed, and refused without.
		fault, refused string
	}{
		pin + "::node:secret":     {want: Token{Hash: pin[3:], User: NodeUser, Secret: "secret"}},
		" secret\n":               {want: Token{Secret: "secret"}, refused: "give the whole token, K10...::..., as it is in /var/lib/kedge/server/token"},
		"a:b":                     {want: Token{Secret: "a:b"}, refused: "insecure-short-token: true"},
		"abcdef.0123456789abcdef": {want: Token{Secret: "abcdef.0123456789abcdef"}, refused: "insecure-short-token: true"},
		"in two":                  {fault: "white space", refused: "give the whole token"},
		pin[:40]:                  {fault: "give the whole token", refused: "give the whole token"},
		pin + "::":                {fault: "give the whole token", refused: "give the whole token"},
		pin + "::node:":           {fault: "cut off", refused: "cut off"},
		"":                        {fault: "give the whole token", refused: "give the whole token"},
	} {
		got, err := parseConfigured(text, true)
		if got != test.want || (err != nil) != (test.fault != "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%q, short tokens allowed: got %+v, %v", text, got, err)
		}
		_, err = parseConfigured(text, false)
		if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%q: got %v, want %q in it", text, err, test.refused)
		}
		if strings.HasPrefix(text, pin[:40]) && err != nil && strings.Contains(err.Error(), "insecure-short-token") {
			t.Errorf("%q is a damaged whole token: got %v", text, err)
		}
	}
}

func TestAdmitsServers(t *testing.T) {
	pin := tokenPrefix + strings.Repeat("0a", 32) + "::"
	for text, want := range map[string][2]bool{
		pin + "server:secret": {true, false}, pin + "node:secret": {false, false}, pin + "abcdef.0123456789abcdef": {false, false},
		"secret": {true, true}, "abcdef.0123456789abcdef": {false, true}, "": {false, false}, "K10secret": {false, false},
	} {
		if admits, short := AdmitsServers(text); admits != want[0] || short != want[1] {
			t.Errorf("%q: got %t, %t", text, admits, short)
		}
	}
}

// impostor serves the authority of a stranger. It fails the test if it gets a token.
func impostor(t *testing.T) Dial {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the impostor got the token at %s", r.URL.Path)
		}
		_, _ = w.Write(newAuthority(t))
	}))
	t.Cleanup(server.Close)
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}
}

func TestJoinServerShort(t *testing.T) {
	o := newOther(t)
	token, err := ParseToken(o.token)
	if err != nil {
		t.Fatal(err)
	}
	short := func(dir datadir.Dir) ServerConfig {
		cfg := o.config(dir)
		cfg.Token, cfg.ShortToken = token.Secret, true
		return cfg
	}
	dir := newDir(t)
	if _, err := JoinServer(t.Context(), short(dir), false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir.TrustedCA()); !os.IsNotExist(err) {
		t.Errorf("a server that has joined keeps the authority that it trusted first: %v", err)
	}
	// A join that was interrupted is repeated, and trusts only the authority that is there.
	again := short(dir)
	if _, err := JoinServer(t.Context(), again, false); err != nil {
		t.Errorf("join for the second time: %v", err)
	}
	again.Dial = impostor(t)
	if _, err := JoinServer(t.Context(), again, false); err == nil || !strings.Contains(err.Error(), "this server has a cluster of its own") {
		t.Errorf("an impostor at the second time: got %v", err)
	}

	// A server that could not join trusts only the server that it met first.
	cfg := short(newDir(t))
	cfg.Token = "wrong"
	if _, err := JoinServer(t.Context(), cfg, false); err == nil || !strings.Contains(err.Error(), "does not accept the token") {
		t.Errorf("with a wrong secret: got %v", err)
	}
	if text, err := os.ReadFile(cfg.Dir.TrustedCA()); err != nil || string(text) != token.Hash+"\n" {
		t.Errorf("it keeps %q, %v", text, err)
	}
	cfg.Token, cfg.Dial = token.Secret, impostor(t)
	if _, err := JoinServer(t.Context(), cfg, false); err == nil || !strings.Contains(err.Error(), "remove "+cfg.Dir.TrustedCA()) {
		t.Errorf("an impostor after that: got %v", err)
	}
	cfg.Dial = o.dial
	if _, err := JoinServer(t.Context(), cfg, false); err != nil {
		t.Errorf("with the right secret: %v", err)
	}
}
