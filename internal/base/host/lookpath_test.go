package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestLookPath(t *testing.T) {
	inPath, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("PATH", inPath)
	for path, mode := range map[string]os.FileMode{
		filepath.Join(inPath, "a"): 0o755, filepath.Join(first, "a"): 0o755,
		filepath.Join(first, "b"): 0o755, filepath.Join(second, "b"): 0o755,
		filepath.Join(first, "c"): 0o644, filepath.Join(second, "c"): 0o755,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for program, want := range map[string]string{
		"a": filepath.Join(inPath, "a"),
		"b": filepath.Join(first, "b"),
		"c": filepath.Join(second, "c"), // the first one cannot be run
	} {
		if got, err := LookPath(program, first, second); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", program, got, err, want)
		}
	}
	if got, err := LookPath("d", first, second); !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing program is %q, %v", got, err)
	}
}
