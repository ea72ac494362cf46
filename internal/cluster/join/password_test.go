package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnsurePassword(t *testing.T) {
	for name, test := range map[string]struct{ own, k3s, want string }{
		"own":           {"mine\n", "theirs\n", "mine"},
		"k3s's":         {"", "theirs\n", "theirs"},
		"a new one":     {"", "", ""},
		"k3s's, no own": {"-", "theirs\n", "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			own, k3s := filepath.Join(folder, "node", "password"), filepath.Join(folder, "k3s")
			for file, text := range map[string]string{own: test.own, k3s: test.k3s} {
				if text == "-" {
					continue
				}
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := EnsurePassword(own, k3s)
			if err != nil || test.want != "" && got != test.want || got == "" {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			if kept, err := os.ReadFile(own); err != nil || strings.TrimSpace(string(kept)) != got {
				t.Errorf("kept is %q, %v, want %q", kept, err, got)
			}
			if text, err := os.ReadFile(k3s); err != nil || string(text) != test.k3s {
				t.Errorf("k3s's file is %q, %v", text, err)
			}
		})
	}
}
