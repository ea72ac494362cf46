package join

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// FuzzParseToken parses any text as a token. A valid token has a canonical form, and a
// server gets it unchanged.
func FuzzParseToken(f *testing.F) {
	pin := tokenPrefix + strings.Repeat("0a", 32) + "::"
	for _, credentials := range []string{"server:secret", "node:a:b", "abcdef.0123456789abcdef", "server:abcdef.0123456789abcdef", "server:", "root:x", "", "server:a b"} {
		f.Add(pin + credentials)
	}
	f.Add("\n" + pin + "node:x \n")
	f.Add("K10::server:secret")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			if token != (Token{}) {
				t.Errorf("%q is refused, and is %+v", text, token)
			}
			short, err := parseConfigured(text, true)
			for _, meaning := range short.meanings() {
				r := &http.Request{Header: http.Header{}}
				meaning.Authorize(r)
				_, secret, basic := r.BasicAuth()
				if err == nil && (short.Hash != "" || basic && secret != strings.TrimSpace(text) || !basic && !IsBootstrapSecret(meaning.Secret)) {
					t.Errorf("the short token %q is %+v, and is shown as %q", text, short, secret)
				}
			}
			return
		}
		if again, err := ParseToken(token.String()); err != nil || again != token {
			t.Errorf("%+v is %+v when it is read again: %v", token, again, err)
		}
		r := &http.Request{Header: http.Header{}}
		token.Authorize(r)
		user, secret, basic := r.BasicAuth()
		bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token.User != "" && (!basic || user != token.User || secret != token.Secret) {
			t.Errorf("%+v is shown as %q, %q", token, user, secret)
		}
		if token.User == "" && (!IsBootstrapSecret(token.Secret) || bearer != token.Secret) {
			t.Errorf("%+v is shown as %q", token, bearer)
		}
	})
}

// FuzzConfiguredToken configures any text as a server's token. If the server starts with
// it, the token that it prints admits nodes, even after the next start.
func FuzzConfiguredToken(f *testing.F) {
	ca := newAuthority(f)
	token, err := EnsureToken(newDir(f), "whole", ca)
	if err != nil {
		f.Fatal(err)
	}
	for _, configured := range []string{"", "secret", token, "a:b", "::", "K10::server:x", "with space", "ends in a tab\t", "\u00a0secret\u00a0", "form\ffeed", "\vtab"} {
		f.Add(configured)
	}
	f.Fuzz(func(t *testing.T, configured string) {
		dir := newDir(t)
		whole, err := EnsureToken(dir, configured, ca)
		if err != nil {
			if _, err := os.Stat(dir.ServerToken()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q is refused, and kept: %v", configured, err)
			}
			return
		}
		token, err := ParseToken(whole)
		if err != nil {
			t.Fatalf("the server starts with the setting %q, but its token %q cannot be parsed: %v", configured, whole, err)
		}
		if !CheckSecret(dir, ServerUser, token.Secret) || CheckSecret(dir, ServerUser, token.Secret+"x") || CheckSecret(dir, NodeUser, token.Secret) {
			t.Errorf("the server starts with the setting %q: want it to accept the secret of its token for servers, and no other", configured)
		}
		if again, err := EnsureToken(dir, "", ca); err != nil || again != whole {
			t.Errorf("got token %q after the next start, want %q: %v", again, whole, err)
		}
	})
}

// FuzzCheckSecret shows any credentials to a server whose token file has any content.
func FuzzCheckSecret(f *testing.F) {
	pin := tokenPrefix + strings.Repeat("0a", 32) + "::"
	f.Add(pin+"server:secret\n", "server", "secret")
	f.Add(pin+"node:secret\n", "node", "secret")
	f.Add(pin+"node:secret\n", "server", "secret")
	f.Add(pin+"abcdef.0123456789abcdef\n", "", "abcdef.0123456789abcdef")
	f.Add("", "server", "")
	f.Add(pin+"server:", "server", "")
	dir := newDir(f)
	f.Fuzz(func(t *testing.T, kept, user, secret string) {
		for _, file := range []string{dir.ServerToken(), dir.AgentToken()} {
			if err := os.WriteFile(file, []byte(kept), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !CheckSecret(dir, user, secret) {
			return
		}
		if secret == "" || user != ServerUser && user != NodeUser || !strings.HasSuffix(strings.TrimSpace(kept), "::"+user+":"+secret) {
			t.Errorf("the token %q admits %q with %q", kept, user, secret)
		}
	})
}

// FuzzSeal changes a byte of the secrets that a server sends to a joining server. The
// other server refuses the result, or gets the original secrets.
func FuzzSeal(f *testing.F) {
	f.Add("secret", "server-ca.key", []byte("key"), uint(0), byte(0))
	f.Add("", "", []byte{}, uint(12), byte(1))
	f.Add("secret", "../a", []byte{0xff}, uint(1000), byte(0x20))
	f.Fuzz(func(t *testing.T, secret, name string, content []byte, at uint, change byte) {
		name = strings.ToValidUTF8(name, "") // the secrets are encoded as JSON
		secrets := map[string][]byte{name: content}
		sealed, err := Seal(secret, secrets)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(sealed)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > 8 && bytes.Contains(text, content) {
			t.Errorf("%q can be read in %s", content, text)
		}
		text[at%uint(len(text))] ^= change
		var received Sealed
		if err := json.Unmarshal(text, &received); err != nil {
			return
		}
		opened, err := received.Open(secret)
		if err == nil && !maps.EqualFunc(opened, secrets, slices.Equal) {
			t.Errorf("%v was sent, and %v received", secrets, opened)
		}
		if err != nil && change == 0 {
			t.Errorf("%v was sent, and refused: %v", secrets, err)
		}
	})
}

// FuzzSealed opens anything that a server may send.
func FuzzSealed(f *testing.F) {
	f.Add([]byte(`{"salt":"AAAA","nonce":"AAAAAAAAAAAAAAAA","data":"AAAAAAAAAAAAAAAAAAAAAA=="}`), "secret")
	f.Add([]byte(`{"nonce":"AAAA"}`), "")
	f.Add([]byte(`{"salt":null,"data":[1]}`), "secret")
	f.Fuzz(func(t *testing.T, text []byte, secret string) {
		var sealed Sealed
		if json.Unmarshal(text, &sealed) != nil {
			return
		}
		if secrets, err := sealed.Open(secret); err == nil {
			t.Errorf("%s is opened by %q, and has %v", text, secret, secrets)
		}
	})
}
