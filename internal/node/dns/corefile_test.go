package dns

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
		folder:    "/etc/kedge/dns",
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
		{"file import after what looks like a snippet", "a.server", "example.com {\n  log (/etc/shadow)\n  import /etc/shadow\n}", "only snippets"},
		{"file import by a snippet's name", "a.server", "(/etc/shadow) {\n log\n}\nexample.com {\n import /etc/shadow\n}", "only snippets"},
		{"file import beside kedge", "a.server", "a.example, (shadow) {\n log\n}\nexample.com {\n import shadow\n}", "File to import not found"},
		{"snippets in snippets", "a.server", "(a) {\n log\n}\n(b) {\n import a\n}\nexample.com {\n import b\n}", "cannot import another"},
		{"many imports", "a.server", "(a) {\n log " + strings.Repeat("x", 1<<20) + "\n}\na.test {" + strings.Repeat("\nimport a", 5) + "\n}", "write out"},
		{"lines in a text", "a.override", "log \"a\nb\"", "must end on its line"},
		{"environment in pieces", "a.override", "forward . {\r$KEDGE_TOKEN}", "environment variables"},
		{"environment", "a.override", "hosts {$KEDGE_TOKEN}", "environment variables"},
		{"kedge's own directive", "a.override", sharedDirective + " node1 x.local", "Unknown directive"},
		{"kedge's metrics", "a.server", "a.test {\n" + metricsDirective + "\n}", "Unknown directive"},
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

// TestConfined tries every way to name a file outside the folder, and everything else that is not
// allowed to users.
func TestConfined(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(folder, "zone"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("K10secret"), 0o600))
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(folder, "link")))
	must(t, os.Symlink(outside, filepath.Join(folder, "folder")))
	must(t, syscall.Mkfifo(filepath.Join(folder, "fifo"), 0o600))
	c := exampleCorefile()
	c.folder = folder
	cases := []struct{ text, want string }{
		{"file FOLDER/zone example.com", ""},
		{"file FOLDER/not-yet example.com {\n reload 5s\n}", ""},
		{"file OUTSIDE/secret example.com", "must be in the folder"},
		{"file FOLDER/../OUTSIDE/secret", "must be in the folder"},
		{"file FOLDER/link", "is a link or not a regular file"},
		{"file FOLDER/fifo", "is a link or not a regular file"},
		{"file FOLDER", "must be in the folder"},
		{"file FOLDER/folder/secret", "is a link or not a regular file"},
		{"file zone example.com", "must be in the folder"},
		{"file", "a file is missing"},
		{"file FOLDER/zone example.com {\n reload 1m\n} x OUTSIDE/secret", "does not belong after a closing brace"},
		{"file FOLDER/zone {\n include OUTSIDE/secret\n}", `the option "include"`},
		{"file FOLDER/zone {\n reload {\n x\n }\n}", `the option "x"`},
		{"hosts FOLDER/zone", ""},
		{"hosts {\n 192.0.2.1 a.test\n}", ""},
		{"hosts OUTSIDE/secret {\n 192.0.2.1 a.test\n}", "must be in the folder"},
		{"hosts /etc/hosts", "must be in the folder"},
		{"hosts \"OUTSIDE/secret\"", "must be in the folder"},
		{"loadbalance weighted FOLDER/zone {\n reload 1m\n}", ""},
		{"loadbalance weighted OUTSIDE/secret", "must be in the folder"},
		{"loadbalance round_robin", ""},
		{"hosts {\n reload 1ns\n}", "too often"},
		{"hosts {\n reload 0s\n}", ""},
		{"file FOLDER/zone {\n reload 1ms\n}", "too often"},
		{"forward . 192.0.2.1 {\n health_check 1us\n}", "too often"},
		{"forward . 192.0.2.1 {\n health_check 5s domain a.test\n}", ""},
		{"forward . /etc/resolv.conf", ""},
		{"forward . OUTSIDE/secret", "must be in the folder"},
		{"forward . FOLDER/zone", ""},
		{"forward . 192.0.2.1 [2001:db8::1]:53 dns://192.0.2.1 tls://192.0.2.1%dns.example 2001:db8::1", ""},
		{"forward . etc/shadow", "is not an address"},
		{"forward . unix:///run/kedge/kedge.sock", "is not an address"},
		{"forward . grpc://192.0.2.1", "is not an address"},
		{"forward . tls://192.0.2.1 {\n tls FOLDER/zone\n}", ""},
		{"forward . tls://192.0.2.1 {\n tls FOLDER/zone FOLDER/zone OUTSIDE/secret\n}", "must be in the folder"},
		{"forward . tls://192.0.2.1 {\n TLS OUTSIDE/secret\n}", "must be in the folder"},
		{"kubernetes a.test {\n kubeconfig OUTSIDE/secret\n}", `the option "kubeconfig"`},
		{"kubernetes a.test {\n tls OUTSIDE/secret OUTSIDE/secret OUTSIDE/secret\n}", `the option "tls"`},
		{"kubernetes a.test {\n endpoint http://192.0.2.1\n}", `the option "endpoint"`},
		{"kubernetes a.test {\n startup_timeout 1h\n}", `the option "startup_timeout"`},
		{"errors OUTSIDE/secret", ""}, // CoreDNS: "invalid log file"
		{"bind 0.0.0.0", "bind cannot be set"},
		{"debug", ""}, // ignored
		{"template IN TXT {\n answer \"{{ .Name }} 60 IN TXT {{ index .Match 1 }}{{ parseInt .Group.a 16 8 }}\"\n}", ""},
		{"template IN TXT {\n answer \"{{ if eq .Name (.Meta `x`) }}a{{ else }}b{{ end }}\"\n}", ""},
		{"template IN TXT {\n answer \"{{ printf `%1000000d` 1 }}\"\n}", `function "printf" not defined`},
		{"template IN TXT {\n answer \"{{ $x := .Name }}{{ $x }}\"\n}", "variables cannot be used"},
		{"template IN TXT {\n answer \"{{ range .Match }}a{{ end }}\"\n}", "cannot be used in a template"},
		{"template IN TXT {\n answer \"{{ define `x` }}a{{ end }}\"\n}", "cannot define another one"},
		{"template IN TXT {\n answer \"{{ template `answer` }}\"\n}", "cannot be used in a template"},
		{"template IN TXT {\n var x repeat('x', 1000000)\n}", `the option "var"`},
		{"rewrite stop {\n name regex a b\n answer name b a\n}", ""},
	}
	for _, test := range cases {
		text := strings.NewReplacer("FOLDER", folder, "OUTSIDE", outside).Replace(test.text)
		for key, text := range map[string]string{"a.override": text, "a.server": "a.test {\n" + text + "\n}"} {
			out, err := c.render(map[string]string{key: text})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: got %v, want %q\n%s", text, err, test.want, out)
			}
			if strings.Contains(fmt.Sprint(err), "K10secret") {
				t.Errorf("%s: the file is told: %v", text, err)
			}
		}
	}
	c.upstreams = nil
	if _, err := c.render(map[string]string{"a.override": "forward . /etc/resolv.conf"}); err == nil || !strings.Contains(err.Error(), "no nameservers") {
		t.Errorf("render without nameservers: got error %v, want that there are none", err)
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
