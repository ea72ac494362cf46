package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteFileReplacesWhole(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	// What a kill -9 in the middle of a write leaves must not be in the way.
	if err := os.WriteFile(filepath.Join(dir, ".file.tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		content string
		mode    os.FileMode
	}{{"a longer first content", 0o644}, {"short", 0o600}} {
		if err := WriteFile(path, []byte(step.content), step.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != step.content {
			t.Fatalf("read %q, %v", got, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != step.mode {
			t.Errorf("mode %v, %v; want %v", info.Mode(), err, step.mode)
		}
	}
	if names := list(t, dir); names != "file" {
		t.Errorf("folder holds %q", names)
	}
}

func TestWriteFileKeepsTheOldOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	mount(t, dir, 0, "size=64k")
	path := filepath.Join(dir, "file")
	if err := WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := WriteFile(path, make([]byte, 128<<10), 0o600)
	if err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("got %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("read %q, %v", got, err)
	}
	if names := list(t, dir); names != "file" {
		t.Errorf("folder holds %q", names)
	}
}
