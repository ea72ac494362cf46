package datadir

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ReadText reads regular files and links to them, and never waits for a writer.
func TestReadText(t *testing.T) {
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	if err := os.WriteFile(in("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("large"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(in("large"), maxText+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(in("folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, target := range map[string]string{
		"link": "file", "off": "/dev/null", "link-to-fifo": "fifo", "link-to-device": "/dev/zero", "link-to-nothing": "nothing", "loop": "loop",
	} {
		if err := os.Symlink(target, in(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"file": "", "link": "",
		"large":           "larger than 32 MiB",
		"folder":          "a folder",
		"fifo":            "a FIFO",
		"link-to-fifo":    "a FIFO",
		"socket":          "a socket",
		"link-to-device":  "a device",
		"link-to-nothing": "no such file",
		"nothing":         "no such file",
		"loop":            "too many levels of symbolic links",
	} {
		text, err := ReadText(in(name))
		switch {
		case want == "" && (err != nil || string(text) != "text"):
			t.Errorf("read %s: got %q, %v, want \"text\"", name, text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), in(name))):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		// CheckRegular need not tell what is only missing, or too large.
		if refused := strings.HasPrefix(want, "a ") || strings.HasPrefix(want, "too many"); (CheckRegular(in(name)) != nil) != refused {
			t.Errorf("%s: CheckRegular returns %v", name, CheckRegular(in(name)))
		}
	}
	if text, err := ReadText(in("off")); err != nil || len(text) > 0 {
		t.Errorf("a file that is switched off: got %q, %v", text, err)
	}
}
