package server

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

var update = flag.Bool("update", false, "write the golden files of TestK3sSetUps anew")

// TestK3sSetUps loads configurations of k3s as people have them, and checks their arguments
// as a start does. Each can start a kedge, or is refused with the sentence that is wanted.
// A golden file beside each configuration has what the log says of the names in it. The
// scenario tests/e2e/k3ssetups starts kedge with the same files.
func TestK3sSetUps(t *testing.T) {
	files, err := filepath.Glob("testdata/k3s/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	refused := map[string]string{
		"tailscale": "run the VPN on the host",
		"rootless":  "run kedge as root",
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			cfg, _, err := config.LoadFiles([]string{file}, nil)
			if err == nil {
				cfg.Node.NodeName = "edge"
				err = resolveRoles(cfg).CheckArguments()
			}
			if want := refused[name]; want == "" && err != nil || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			if strings.Contains(fmt.Sprint(err, cfg.Notices), "SECRET") || strings.Contains(fmt.Sprint(err, cfg.Notices), "PASSWORD") {
				t.Errorf("a secret is told: %v, %v", err, cfg.Notices)
			}
			wantNotices(t, strings.TrimSuffix(file, ".yaml")+".notices", cfg.Notices)
		})
	}
}

// wantNotices compares notices with a golden file, which has a line NAME: SENTENCES for each.
func wantNotices(t *testing.T, golden string, notices []config.Notice) {
	t.Helper()
	var text strings.Builder
	for _, notice := range notices {
		fmt.Fprintf(&text, "%s: %s\n", notice.Name, notice.Says)
	}
	if *update {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Errorf("got the notices\n%swant\n%s", text.String(), want)
	}
}
