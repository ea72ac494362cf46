package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// TestCheckVolumes changes default-local-storage-path of a node without volumes, and with
// one, and moves the folder.
func TestCheckVolumes(t *testing.T) {
	dir, other, third := datadir.Dir(t.TempDir()), t.TempDir(), t.TempDir()
	check := func(path string) error {
		return checkVolumes(dir, config.Node{DefaultLocalStoragePath: path})
	}
	pass := func(what, path string) {
		t.Helper()
		if err := check(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refuse := func(what, path, before string) {
		t.Helper()
		if err := check(path); err == nil || !strings.Contains(err.Error(), "set `default-local-storage-path: "+before+"`") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	give := func(base string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(base, ".volumes"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, ".volumes", "pvc-1.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pass("a first start", "")
	pass("another folder, without volumes", other)
	give(other)
	pass("the same folder", other)
	refuse("a third folder", third, other)
	refuse("the default", "", other)
	if err := os.Rename(filepath.Join(other, ".volumes"), filepath.Join(third, ".volumes")); err != nil {
		t.Fatal(err)
	}
	pass("the folder was moved", third)

	// A node of an older kedge has written nothing down.
	dir = datadir.Dir(t.TempDir())
	give(dir.Storage())
	refuse("an older kedge", other, dir.Storage())
}
