package datadir

import (
	"errors"
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
	// The leftover of a kill -9 in the middle of a write must not be in the way.
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

// TestWriteChanged writes a file again only if its content changes.
func TestWriteChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) os.FileInfo {
		t.Helper()
		if err := WriteChanged(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("read %q, %v; want %q", got, err, text)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := write("a")
	if !os.SameFile(first, write("a")) {
		t.Error("an unchanged file was written again")
	}
	write("b")
}

// TestLink makes a link, leaves it, and replaces it. It does not replace a folder with files.
func TestLink(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "link")
	for _, target := range []string{"a", "a", "b"} {
		if err := Link(path, target); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(path); err != nil || got != target {
			t.Errorf("the link leads to %q, %v; want %q", got, err, target)
		}
	}
	if err := Link(folder, "a"); err == nil {
		t.Error("a folder with files was replaced by a link")
	}
}

// TestReplace interrupts Replace after each of its steps, and calls it again.
func TestReplace(t *testing.T) {
	for _, interrupted := range []string{"not", "between", "new"} {
		folder := t.TempDir()
		path := func(name string) string { return filepath.Join(folder, name) }
		write := func(name, text string) {
			t.Helper()
			if err := os.Mkdir(path(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(path(name), "file"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("next", "new")
		switch interrupted {
		case "between":
			write("kept", "old")
		case "new": // there was no former content
		default:
			write("current", "old")
		}
		for range 2 {
			if err := Replace(path("next"), path("current"), path("kept")); err != nil {
				t.Fatalf("replace, interrupted %s: %v", interrupted, err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(path("current"), "file")); err != nil || string(got) != "new" {
			t.Errorf("%s: current is %q, %v", interrupted, got, err)
		}
		got, err := os.ReadFile(filepath.Join(path("kept"), "file"))
		if interrupted == "new" != errors.Is(err, os.ErrNotExist) || err == nil && string(got) != "old" {
			t.Errorf("%s: kept is %q, %v", interrupted, got, err)
		}
	}
}

// TestWriteTogether writes all files, or none if one cannot be written.
func TestWriteTogether(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := WriteTogether(File{a, []byte("1"), 0o600}, File{b, []byte("2"), 0o644}); err != nil {
		t.Fatal(err)
	}
	err := WriteTogether(File{a, []byte("3"), 0o600}, File{filepath.Join(dir, "none", "b"), []byte("4"), 0o644})
	if err == nil {
		t.Error("a file was written into a folder that is not there")
	}
	if got, err := os.ReadFile(a); err != nil || string(got) != "1" {
		t.Errorf("read %q, %v", got, err)
	}
	if names := list(t, dir); names != "a b" {
		t.Errorf("folder holds %q", names)
	}
}
