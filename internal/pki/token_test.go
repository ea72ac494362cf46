package pki

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestEnsureToken(t *testing.T) {
	s := ensure(t, options(t))
	hash, err := CAHash(s.ServerCA())
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
			o := options(t)
			if test.kept != "" {
				write(t, o.Dir.ServerToken(), test.kept)
			}
			token, err := EnsureToken(o.Dir, test.configured, s.ServerCA())
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %q, %v; want %q in the error", token, err, test.fault)
				}
				return
			}
			if err != nil || token != test.want {
				t.Fatalf("got %q, %v; want %q", token, err, test.want)
			}
			if text, err := os.ReadFile(o.Dir.ServerToken()); err != nil || string(text) != token+"\n" {
				t.Errorf("kept %q, %v", text, err)
			}
		})
	}
}

func TestEnsureTokenMakesOneAndKeepsIt(t *testing.T) {
	o := options(t)
	s := ensure(t, o)
	first, err := EnsureToken(o.Dir, "", s.ServerCA())
	if err != nil || !regexp.MustCompile(`^K10[0-9a-f]{64}::server:[0-9a-f]{32}$`).MatchString(first) {
		t.Fatalf("got %q, %v", first, err)
	}
	if info, err := os.Stat(o.Dir.ServerToken()); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if second, err := EnsureToken(o.Dir, "", s.ServerCA()); err != nil || second != first {
		t.Errorf("then got %q, %v", second, err)
	}
}
