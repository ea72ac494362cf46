package dns

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
)

var update = flag.Bool("update", false, "write the golden files anew")

func exampleCorefile() corefile {
	return corefile{
		source:    "node1",
		addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		port:      Port,
		domain:    "cluster.local",
		upstreams: []string{"127.0.0.53:53"},
	}
}

func TestRender(t *testing.T) {
	dual := exampleCorefile()
	dual.addresses = append(dual.addresses, netip.MustParseAddr("2001:db8::1"))
	dual.admitted = admitted(Config{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/56")},
		NodeIPs:  dual.addresses,
	})
	alone := exampleCorefile()
	alone.upstreams = nil
	cases := []struct {
		name     string
		corefile corefile
		custom   map[string]string
	}{
		{"plain", exampleCorefile(), nil},
		{"no-upstream", alone, nil},
		{"dual-stack-without-nft", dual, map[string]string{"x.server": "example.com {\n forward . 192.0.2.9\n}"}},
		{"custom", exampleCorefile(), map[string]string{
			"README": "not a part } {",
			"hosts.override": `
hosts {
  192.0.2.80 printer.lan # on the first floor
  fallthrough
}
cache 5
log`,
			"rewrite.server": `
example.com:53, dns://example.org 10.0.0.0/24 2001:db8::/32 {
    log
    errors
    loop
    health :8080
    prometheus :9153
    rewrite stop {
      name regex (.*)\.example\.com {1}.default.svc.cluster.local
      answer name (.*)\.default\.svc\.cluster\.local {1}.example.com
    }
    forward . /etc/resolv.conf
}
alias.local:5353 {
    kubernetes alias.local {
        pods verified
    }
    template IN TXT {
        answer "{{ .Name }} 60 IN TXT \"hello # there\""
    }
}`,
			"snippet.server": `
(quiet) {
  errors
  cache 60
}
a.example {
  import quiet
  forward . 192.0.2.10
}`,
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.corefile.render(c.custom)
			must(t, err)
			golden := filepath.Join("testdata", c.name+".corefile")
			if *update {
				must(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			must(t, err)
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if _, err := caddyfile.Parse("Corefile", strings.NewReader(got), directives); err != nil {
				t.Errorf("CoreDNS cannot read it: %v", err)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	cases := []struct{ name, key, text, want string }{
		{"unknown directive", "a.server", "example.com {\n  frward . 192.0.2.1\n}", "part a.server: a.server:2 - Error during parsing: Unknown directive 'frward'"},
		{"unknown directive in override", "a.override", "frward . 192.0.2.1", "part a.override: a.override:1 - Error during parsing: Unknown directive 'frward'"},
		{"block in override", "a.override", "log\n}\nexample.com {\n  log", "put server blocks in a key that ends with .server"},
		{"open brace", "a.server", "example.com {\n  log", "a brace is not closed"},
		{"open brace in override", "a.override", "hosts {\n", "a brace is not closed"},
		{"own address", "a.server", "example.com {\n  bind 0.0.0.0\n}", "bind cannot be set"},
		{"other protocol", "a.server", "tls://example.com {\n  log\n}", "does not speak tls"},
		{"file import", "a.server", "example.com {\n  import /etc/shadow\n}", "only snippets"},
		{"environment", "a.override", "hosts {$KEDGE_TOKEN}", "environment variables"},
		{"kedge's own directive", "a.override", sharedDirective + " node1 x.local", "Unknown directive"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := exampleCorefile().render(map[string]string{c.key: c.text})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	for _, token := range []string{"a", "", "a b", `say "x"`, "a#b", `a\.b`, `a \. b`, "two\nlines", `"`, "{", `a\\b`} {
		quoted, err := quote(token)
		must(t, err)
		back := caddyfile.NewDispenser("", strings.NewReader("x "+quoted+" y"))
		back.Next()
		if !back.Next() || back.Val() != token {
			t.Errorf("%q became %q", token, back.Val())
		}
		if !back.Next() || back.Val() != "y" {
			t.Errorf("%q swallowed what follows", token)
		}
	}
	for _, token := range []string{`a \" b`, `a b\`} {
		if quoted, err := quote(token); err == nil {
			t.Errorf("%q quoted as %s", token, quoted)
		}
	}
}

func TestUpstreams(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(file, []byte("search lan\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver 10.43.0.10\nnameserver 2001:db8::53\n"), 0o644))
	got := upstreams(file, []netip.Addr{netip.MustParseAddr("10.43.0.10")})
	if want := []string{"127.0.0.53:53", "[2001:db8::53]:53"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := upstreams(file+"missing", nil); got != nil {
		t.Errorf("got %v from no file", got)
	}
}
