package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResolvConf(t *testing.T) {
	const public = "nameserver 8.8.8.8\n"
	for name, c := range map[string]struct {
		etc, resolved string // "" means that the file is missing
		want          string // which file; "fallback" if it is written
		content       string // of the fallback, without its comment
	}{
		"plain":                  {etc: "search lan\nnameserver 192.168.1.1\n", want: "etc"},
		"IPv6":                   {etc: "nameserver fd00::1\n", want: "etc"},
		"cloud's link-local":     {etc: "nameserver 169.254.169.253\n", want: "etc"},
		"systemd-resolved":       {etc: "nameserver 127.0.0.53\nsearch lan\n", resolved: "nameserver 10.0.0.1\n", want: "resolved"},
		"resolved knows nothing": {etc: "nameserver 127.0.0.53\n", resolved: "# empty\n", want: "fallback", content: public},
		"dnsmasq":                {etc: "options edns0\nnameserver 127.0.0.1\nsearch lan\n", want: "fallback", content: "options edns0\nsearch lan\n" + public},
		"loopback and another":   {etc: "nameserver 127.0.0.1\nnameserver 10.0.0.1\n", resolved: "nameserver 10.0.0.9\n", want: "fallback", content: "nameserver 10.0.0.1\n"},
		"IPv6 with zone":         {etc: "nameserver fe80::1%eth0\n", want: "fallback", content: public},
		"mapped loopback":        {etc: "nameserver ::ffff:127.0.0.1\n", want: "fallback", content: public},
		"unspecified":            {etc: "nameserver 0.0.0.0\n", want: "fallback", content: public},
		"rubbish":                {etc: "nameserver\nnameserver x\n; nameserver 10.0.0.1\n", want: "fallback", content: public},
		"nothing":                {want: "fallback", content: public},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			paths := map[string]string{
				"etc":      filepath.Join(dir, "etc.conf"),
				"resolved": filepath.Join(dir, "resolved.conf"),
				"fallback": filepath.Join(dir, "agent", "etc", "resolv.conf"),
			}
			for file, content := range map[string]string{"etc": c.etc, "resolved": c.resolved} {
				if content == "" {
					continue
				}
				if err := os.WriteFile(paths[file], []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			// Twice, as at a second start.
			for range 2 {
				got, err := pickResolvConf("", paths["etc"], paths["resolved"], filepath.Dir(paths["fallback"]))
				if err != nil {
					t.Fatal(err)
				}
				if got != paths[c.want] {
					t.Fatalf("picked %s, want %s", got, paths[c.want])
				}
			}
			if c.want != "fallback" {
				return
			}
			content, err := os.ReadFile(paths["fallback"])
			if err != nil {
				t.Fatal(err)
			}
			_, got, _ := strings.Cut(string(content), "\n")
			if got != c.content {
				t.Errorf("wrote %q, want %q", got, c.content)
			}
		})
	}
}

func TestResolvConfConfigured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.conf")
	if _, err := ResolvConf(path, t.TempDir()); err == nil || !strings.Contains(err.Error(), "--resolv-conf") {
		t.Errorf("a missing file gave %v", err)
	}
	if err := os.WriteFile(path, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ResolvConf(path, t.TempDir()); err != nil || got != path {
		t.Errorf("got %q, %v", got, err)
	}
}
