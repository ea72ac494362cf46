package host

import (
	"os"
	"path/filepath"
	"testing"
)

// TestIsShuttingDown asks a systemctl that answers as systemd's does.
func TestIsShuttingDown(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	if IsShuttingDown(t.Context()) {
		t.Error("a machine without systemd shuts down")
	}
	for state, want := range map[string]bool{"running": false, "degraded": false, "stopping": true, "offline": false} {
		if err := os.WriteFile(filepath.Join(folder, "systemctl"), []byte("#!/bin/sh\necho "+state+"\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := IsShuttingDown(t.Context()); got != want {
			t.Errorf("%s: got %t", state, got)
		}
	}
}
