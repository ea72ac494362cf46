package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// What a bundle has is tested by tests/e2e/seeing.
func TestSupportBundleReplacesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "give another file with --output"
	if os.Geteuid() != 0 {
		want = "run this command with sudo"
	}
	if _, err := run(t, "support-bundle", "-o", file); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want something with %q", err, want)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestSecretsOfABundle(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	token := "K10" + strings.Repeat("0", 64) + "::server:hush"
	if err := os.MkdirAll(filepath.Dir(dir.ServerToken()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.ServerToken(), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Server.AgentToken = "agents"
	known := secrets(cfg, dir)
	for _, want := range []string{token, "hush", "agents"} {
		if !slices.Contains(known, want) {
			t.Errorf("%s is not in %q", want, known)
		}
	}
}

func TestPlace(t *testing.T) {
	running := []config.Setting{{Key: "log", Value: ""}, {Key: "data-dir", Value: "/srv"}}
	for key, want := range map[string]string{"log": "", "data-dir": "/srv", "write-kubeconfig": "/otherwise"} {
		if got := place(running, key, "/otherwise"); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}
