package harness

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// preloadFolder is the folder with images that kedge imports when it starts.
const preloadFolder = "/var/lib/kedge/agent/images"

// Preload gives the host image archives. It must be called before the host's kedge starts.
func (h *Host) Preload(archives ...string) {
	h.t.Helper()
	folder := h.Path(preloadFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		h.t.Fatalf("preload images: %v", err)
	}
	for _, archive := range archives {
		if err := CopyFile(archive, filepath.Join(folder, filepath.Base(archive))); err != nil {
			h.t.Fatalf("preload images: %v", err)
		}
	}
}

// Busybox returns the path of the static busybox that `make` takes from Debian's package. A host
// can use it for commands that the machine may lack.
func Busybox(t T) string {
	t.Helper()
	return Built(t, "busybox")
}

// Built returns the path of a program that `make` gets for tests.
func Built(t T, name string) string {
	t.Helper()
	repository, err := Repository()
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	path := filepath.Join(repository, "build", runtime.GOARCH, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find %s, which `make %s` gets: %v", name, filepath.Join("build", runtime.GOARCH, name), err)
	}
	return path
}

// CopyFile copies a file on the machine.
func CopyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}
