package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// newAuthority makes a certificate in PEM.
func newAuthority(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// newDir makes the folders of a server and an agent in one data directory.
func newDir(t testing.TB) datadir.Dir {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS(), dir.AgentEtc()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEnsureToken(t *testing.T) {
	ca := newAuthority(t)
	hash, err := pki.CAHash(ca)
	if err != nil {
		t.Fatal(err)
	}
	whole := "K10" + hash + "::server:"
	other := "K10" + strings.Repeat("0", 64) + "::server:"
	tests := map[string]struct {
		kept, configured string
		// want is the token, or a part of the error.
		want, fault string
	}{
		"configured":               {configured: "secret", want: whole + "secret"},
		"configured whole":         {configured: whole + "secret", want: whole + "secret"},
		"configured with K10":      {configured: "K10secret", want: whole + "K10secret"},
		"configured over kept":     {kept: whole + "old\n", configured: "new", want: whole + "new"},
		"kept":                     {kept: whole + "old\n", want: whole + "old"},
		"kept of an older CA":      {kept: other + "old\n", want: whole + "old"},
		"kept bare":                {kept: "old\n", want: whole + "old"},
		"kept empty":               {kept: "\n", fault: "remove the file"},
		"configured of another CA": {configured: other + "secret", fault: "another cluster"},
		"configured of an agent":   {configured: "K10" + hash + "::node:secret", fault: "server:SECRET"},
		"configured without any":   {configured: whole, fault: "no secret"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			if test.kept != "" {
				if err := os.WriteFile(dir.ServerToken(), []byte(test.kept), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			token, err := EnsureToken(dir, test.configured, ca)
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %q, %v; want %q in the error", token, err, test.fault)
				}
				return
			}
			if err != nil || token != test.want {
				t.Fatalf("got %q, %v; want %q", token, err, test.want)
			}
			if text, err := os.ReadFile(dir.ServerToken()); err != nil || string(text) != token+"\n" {
				t.Errorf("got token file %q, %v, want the token", text, err)
			}
		})
	}
}

func TestEnsureTokenMakesOneAndKeepsIt(t *testing.T) {
	dir := newDir(t)
	ca := newAuthority(t)
	first, err := EnsureToken(dir, "", ca)
	if err != nil || !regexp.MustCompile(`^K10[0-9a-f]{64}::server:[0-9a-f]{32}$`).MatchString(first) {
		t.Fatalf("got %q, %v", first, err)
	}
	if info, err := os.Stat(dir.ServerToken()); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if second, err := EnsureToken(dir, "", ca); err != nil || second != first {
		t.Errorf("then got %q, %v", second, err)
	}
}

// TestLinkNodeToken makes the link once, and replaces what else has its name.
func TestLinkNodeToken(t *testing.T) {
	dir := newDir(t)
	token, err := EnsureToken(dir, "", newAuthority(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []func() error{
		func() error { return nil },
		func() error { return nil },
		func() error { return os.Remove(dir.NodeToken()) },
		func() error {
			return errors.Join(os.Remove(dir.NodeToken()), os.WriteFile(dir.NodeToken(), []byte("old"), 0o600))
		},
	} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		if err := LinkNodeToken(dir); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(dir.NodeToken()); err != nil || string(text) != token+"\n" {
			t.Errorf("it leads to %q, %v", text, err)
		}
		if leads, err := os.Readlink(dir.NodeToken()); err != nil || leads != "token" {
			t.Errorf("it is a link to %q, %v", leads, err)
		}
	}
}

func TestParseToken(t *testing.T) {
	hash := strings.Repeat("0af1", 16)
	for name, test := range map[string]struct {
		text string
		want Token
		// fault is a part of the error.
		fault string
	}{
		"server":             {text: "K10" + hash + "::server:a:b\n", want: Token{hash, "server", "a:b"}},
		"agent":              {text: "K10" + hash + "::node:secret", want: Token{hash, "node", "secret"}},
		"bootstrap":          {text: "K10" + hash + "::abcdef.0123456789abcdef", want: Token{hash, "", "abcdef.0123456789abcdef"}},
		"no hash":            {text: "secret", fault: "give the whole token"},
		"bootstrap, no hash": {text: "abcdef.0123456789abcdef", fault: "give the whole token"},
		"short hash":         {text: "K10" + hash[1:] + "::server:secret", fault: "give the whole token"},
		"cut off":            {text: "K10" + hash + "::server:", fault: "cut off"},
		"bootstrap, cut off": {text: "K10" + hash + "::abcdef.0123456789abcde", fault: "cut off"},
		"another user":       {text: "K10" + hash + "::admin:secret", fault: "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseToken(test.text)
			switch {
			case test.fault != "":
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %v, want %q in the error", err, test.fault)
				}
			case err != nil || got != test.want:
				t.Errorf("got %+v, %v", got, err)
			case got.String() != strings.TrimSpace(test.text):
				t.Errorf("written as %s", got)
			}
		})
	}
}

func TestCheckSecret(t *testing.T) {
	dir, ca := newDir(t), newAuthority(t)
	if _, err := EnsureToken(dir, "one", ca); err != nil {
		t.Fatal(err)
	}
	check := func(when, user, secret string, want bool) {
		t.Helper()
		if CheckSecret(dir, user, secret) != want {
			t.Errorf("%s, %s:%s is taken: %t", when, user, secret, !want)
		}
	}
	check("with a server token", ServerUser, "one", true)
	check("with a server token", ServerUser, "two", false)
	check("with a server token", ServerUser, "", false)
	check("with a server token", NodeUser, "one", false)
	check("with a server token", "", "one", false)
	if err := EnsureAgentToken(dir, "two", ca); err != nil {
		t.Fatal(err)
	}
	check("with an agent token", NodeUser, "two", true)
	check("with an agent token", ServerUser, "two", false)
	if err := EnsureAgentToken(dir, "", ca); err != nil {
		t.Fatal(err)
	}
	check("without it again", NodeUser, "two", false)
	text, err := RotateToken(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	token, err := ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	check("rotated", ServerUser, "one", false)
	check("rotated", ServerUser, token.Secret, true)
	r, _ := http.NewRequest(http.MethodGet, "https://x", nil)
	token.Authorize(r)
	if user, secret, _ := r.BasicAuth(); !CheckSecret(dir, user, secret) {
		t.Error("the request does not have the token")
	}
}

// TestNewToken wants a new token to be what a configuration may have as its token, and the
// token until now to be recognized.
func TestNewToken(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	hash := strings.Repeat("a", 64)
	own := Token{hash, ServerUser, "old"}
	if err := os.MkdirAll(filepath.Dir(dir.ServerToken()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := keepToken(dir.ServerToken(), own.String()); err != nil {
		t.Fatal(err)
	}
	for given, fault := range map[string]string{
		"with space":                        "white space",
		Token{hash, NodeUser, "x"}.String(): "another kind of token",
		Token{strings.Repeat("b", 64), ServerUser, "x"}.String(): "of another cluster",
		Token{hash, ServerUser, ""}.String():                     "no secret",
		"old":                                                    "the present one",
		own.String():                                             "the present one",
	} {
		if _, err := RotateToken(dir, given); !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want %q", given, err, fault)
		}
	}
	for _, given := range []string{"old", own.String()} {
		if err := CheckToken(dir, given); err != nil {
			t.Errorf("%s: %v", given, err)
		}
	}
	for _, given := range []string{"new", Token{hash, ServerUser, "newer"}.String(), "secret:with:colons", "abcdef.0123456789abcdef"} {
		want, _ := strings.CutPrefix(given, Token{hash, ServerUser, ""}.String())
		text, err := RotateToken(dir, given)
		if err != nil || text != (Token{hash, ServerUser, want}).String() || !CheckSecret(dir, ServerUser, want) {
			t.Errorf("%s: got %s, %v", given, text, err)
		}
	}
	for _, given := range []string{"old", own.String(), Token{strings.Repeat("b", 64), ServerUser, "new"}.String()} {
		if err := CheckToken(dir, given); err == nil {
			t.Errorf("%s is taken for the token", given)
		}
	}
}

func TestCheckSkew(t *testing.T) {
	for name, test := range map[string]struct {
		node, server string
		older        bool
		fault        string
	}{
		"same":      {"v1.36.3+kedge.2", "v1.36.1+kedge.7", false, ""},
		"older":     {"v1.35.0+kedge.1", "v1.36.3+kedge.1", true, ""},
		"oldest":    {"v1.33.9", "v1.36.0", true, ""},
		"too old":   {"v1.32.9", "v1.36.0", false, "upgrade this node"},
		"newer":     {"v1.37.0", "v1.36.9", false, "upgrade the servers first"},
		"unknown":   {"v1.36.3", "new", false, "server's version"},
		"pre":       {"v1.36.0-rc.1", "v1.36.0", false, ""},
		"long past": {"v1.36.0", "v2.36.0", false, "newer"},
	} {
		older, err := checkSkew(test.node, test.server)
		if older != test.older || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: got %t, %v", name, older, err)
		}
	}
}

// TestTokenOfOtherAuthorities handles tokens while authorities are replaced.
func TestTokenOfOtherAuthorities(t *testing.T) {
	dir, old, next := newDir(t), newAuthority(t), newAuthority(t)
	before, err := EnsureToken(dir, "secret", old)
	if err != nil {
		t.Fatal(err)
	}
	told, err := TokenFor(dir, append(old, next...))
	if err != nil || told == before {
		t.Errorf("told %s, %v", told, err)
	}
	// The configured token may have either hash until the old authority is gone.
	for _, configured := range []string{before, told} {
		if token, err := EnsureToken(dir, configured, append(old, next...)); err != nil || token != told {
			t.Errorf("configured %s: %s, %v", configured, token, err)
		}
	}
	if err := CheckPins(dir, "", "bare", told); err != nil {
		t.Error(err)
	}
	if err := CheckPins(dir, told, before); err == nil || !strings.Contains(err.Error(), "hash of the old certificate authority") {
		t.Errorf("a token of the old authority: %v", err)
	}
	if _, err := EnsureToken(dir, before, next); err == nil || !strings.Contains(err.Error(), "keep only the secret of the token, which follows ::server: in it") {
		t.Errorf("when that is gone: %v", err)
	}
}
