package assets

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// bundle makes an embedded folder with a program, a link to it, an image and a tool. Another text
// makes another build.
func bundle(t *testing.T, text string) fstest.MapFS {
	t.Helper()
	var archive bytes.Buffer
	compressed, err := zstd.NewWriter(&archive)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(compressed)
	manifest := Manifest{Files: []File{
		{Path: "bin/program", Executable: true, Size: int64(len(text))},
		{Path: "bin/link", Link: "program"},
		{Path: "images/pause.tar", Size: int64(len(text))},
		{Path: "bin/crictl", Executable: true, Size: int64(len(text))},
	}}
	for _, f := range manifest.Files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: f.Size, Mode: int64(f.Mode())}
		if f.Link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if f.Link == "" {
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return seal(t, manifest, archive.Bytes())
}

// seal makes the embedded folder of an archive, with its digest.
func seal(t *testing.T, manifest Manifest, archive []byte) fstest.MapFS {
	t.Helper()
	sum := sha256.Sum256(archive)
	manifest.SHA256 = hex.EncodeToString(sum[:])
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{ArchiveName: {Data: archive}, ManifestName: {Data: text}}
}

const noProcesses = "/nonexistent"

func mustUnpack(t *testing.T, files fs.FS, root string) Paths {
	t.Helper()
	paths, err := unpack(files, root, noProcesses)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func wantWhole(t *testing.T, paths Paths, text string) {
	t.Helper()
	for _, path := range []string{filepath.Join(paths.Bin, "program"), filepath.Join(paths.Bin, "link"), paths.PauseArchive} {
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s: got %q, %v; want %q", path, got, err, text)
		}
	}
	info, err := os.Stat(filepath.Join(paths.Bin, "program"))
	if err == nil && info.Mode().Perm() != 0o755 {
		t.Errorf("program has mode %v", info.Mode())
	}
}

// wantOnly fails if root has folders other than those named.
func wantOnly(t *testing.T, root string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		if entry.IsDir() {
			got = append(got, entry.Name())
		}
	}
	if len(got) != len(names) {
		t.Fatalf("folders %q, want %q", got, names)
	}
	for _, name := range names {
		if !strings.Contains(strings.Join(got, " "), name) {
			t.Errorf("folders %q, want %q", got, names)
		}
	}
}

func TestUnpack(t *testing.T) {
	root := filepath.Join(t.TempDir(), "not", "there", "yet")
	// Modes must not depend on the umask of the caller.
	defer unix.Umask(unix.Umask(0o077))
	files := bundle(t, "one")
	first := mustUnpack(t, files, root)
	wantWhole(t, first, "one")
	wantOnly(t, root, first.Digest)

	before, err := os.Stat(first.Bin)
	if err != nil {
		t.Fatal(err)
	}
	again := mustUnpack(t, files, root)
	if again != first {
		t.Errorf("second time %+v, first %+v", again, first)
	}
	after, err := os.Stat(first.Bin)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("unpacked again although nothing had changed")
	}
}

func TestUnpackHeals(t *testing.T) {
	program := func(paths Paths) string { return filepath.Join(paths.Bin, "program") }
	tests := map[string]func(Paths) error{
		"file missing":       func(p Paths) error { return os.Remove(program(p)) },
		"file truncated":     func(p Paths) error { return os.Truncate(program(p), 1) },
		"file changed":       func(p Paths) error { return os.WriteFile(program(p), []byte("two"), 0o755) },
		"file not runnable":  func(p Paths) error { return os.Chmod(program(p), 0o644) },
		"link elsewhere":     func(p Paths) error { return relink(filepath.Join(p.Bin, "link"), "/bin/sh") },
		"folder for a file":  func(p Paths) error { return errors.Join(os.Remove(program(p)), os.Mkdir(program(p), 0o755)) },
		"folder of the name": func(p Paths) error { return os.RemoveAll(p.Bin) },
		"file for a folder": func(p Paths) error {
			return errors.Join(os.RemoveAll(p.Bin), os.WriteFile(p.Bin, nil, 0o644))
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			files := bundle(t, "one")
			paths := mustUnpack(t, files, root)
			if err := damage(paths); err != nil {
				t.Fatal(err)
			}
			wantWhole(t, mustUnpack(t, files, root), "one")
		})
	}
}

func relink(link, target string) error {
	return errors.Join(os.Remove(link), os.Symlink(target, link))
}

func TestUnpackInterrupted(t *testing.T) {
	root := t.TempDir()
	// A kill in the middle leaves a temporary folder with some of the files.
	if err := os.MkdirAll(filepath.Join(root, tempPrefix+"1234", "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	paths, err := unpack(bundle(t, "one"), root, proc)
	if err != nil {
		t.Fatal(err)
	}
	wantWhole(t, paths, "one")
	wantOnly(t, root, paths.Digest)
}

func TestUnpackRefuses(t *testing.T) {
	whole := bundle(t, "one")
	var manifest Manifest
	if err := json.Unmarshal(whole[ManifestName].Data, &manifest); err != nil {
		t.Fatal(err)
	}
	archive := whole[ArchiveName].Data
	flipped := bytes.Clone(archive)
	flipped[len(flipped)/2] ^= 1

	tests := map[string]struct {
		files fs.FS
		want  string
	}{
		"nothing embedded":        {fstest.MapFS{".gitkeep": {}}, ErrNotBuilt.Error()},
		"no archive":              {fstest.MapFS{ManifestName: whole[ManifestName]}, "open embedded archive"},
		"manifest of nothing":     {fstest.MapFS{ManifestName: {Data: []byte("{}")}}, "manifest is incomplete"},
		"manifest not JSON":       {fstest.MapFS{ManifestName: {Data: []byte("{")}}, "decode embedded manifest"},
		"archive truncated":       {fstest.MapFS{ManifestName: whole[ManifestName], ArchiveName: {Data: archive[:len(archive)/2]}}, "does not match its digest"},
		"archive damaged":         {fstest.MapFS{ManifestName: whole[ManifestName], ArchiveName: {Data: flipped}}, "does not match its digest"},
		"truncated before sealed": {seal(t, manifest, archive[:len(archive)-8]), "read embedded archive"},
		"file not in archive":     {seal(t, Manifest{Files: append(manifest.Files, File{Path: "bin/more"})}, archive), "verify"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			_, err := unpack(test.files, root, noProcesses)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got error %v, want %q", err, test.want)
			}
			wantOnly(t, root)
		})
	}
}

// TestUnpackReadOnly uses a read-only mount, because permissions do not stop root.
func TestUnpackReadOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	root := t.TempDir()
	files := bundle(t, "one")
	readOnly := func() {
		t.Helper()
		if err := unix.Mount("kedge-test", root, "tmpfs", unix.MS_RDONLY, ""); err != nil {
			t.Skipf("cannot mount here: %v", err)
		}
	}
	readOnly()
	defer unix.Unmount(root, unix.MNT_DETACH)
	_, err := unpack(files, root, noProcesses)
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("got error %v, want %v", err, unix.EROFS)
	}

	// Unpacked helpers may be used, even if others should be pruned.
	if err := unix.Mount("", root, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	mustUnpack(t, files, root)
	if err := os.Mkdir(filepath.Join(root, "older"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, mustUnpack(t, files, root), "one")
}

func TestUnpackFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	root := t.TempDir()
	if err := unix.Mount("kedge-test", root, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	_, err := unpack(bundle(t, strings.Repeat("x", 1<<20)), root, noProcesses)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got error %v, want %v", err, unix.ENOSPC)
	}
	wantOnly(t, root)
}

// TestTool unpacks a tool at its first use, and mends it.
func TestTool(t *testing.T) {
	root := t.TempDir()
	files := bundle(t, "one")
	helpers := mustUnpack(t, files, root)
	path := filepath.Join(helpers.Bin, "crictl")
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before its first use: %v", err)
	}
	for what, change := range map[string]func() error{
		"first use":  func() error { return nil },
		"second use": func() error { return nil },
		"changed":    func() error { return os.WriteFile(path, []byte("two"), 0o755) },
		"no helpers": func() error { return os.RemoveAll(filepath.Dir(helpers.Bin)) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		got, err := tool(files, root, "crictl")
		if err != nil || got != path {
			t.Fatalf("%s: %s, %v", what, got, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "one" {
			t.Errorf("%s: %q, %v", what, text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", what, info.Mode(), err)
		}
		wantOnly(t, root, helpers.Digest)
	}
	// The folder that has nothing but the tool is not taken for the helpers.
	wantWhole(t, mustUnpack(t, files, root), "one")
	for _, name := range []string{"program", "../bin/crictl", "none"} {
		if path, err := tool(files, root, name); err == nil {
			t.Errorf("%s is a tool: %s", name, path)
		}
	}
}

// TestToolOfAnotherBuild leaves the helpers of the running kedge alone.
func TestToolOfAnotherBuild(t *testing.T) {
	root := t.TempDir()
	running := mustUnpack(t, bundle(t, "one"), root)
	other := bundle(t, "two")
	path, err := tool(other, root, "crictl")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "two" {
		t.Errorf("%q, %v", text, err)
	}
	wantWhole(t, running, "one")
	wantOnly(t, root, running.Digest, filepath.Base(filepath.Dir(filepath.Dir(path))))
}

func TestPrune(t *testing.T) {
	root, proc := t.TempDir(), t.TempDir()
	first := mustUnpack(t, bundle(t, "one"), root)
	second := bundle(t, "two")

	// The shim of a pod still runs from the first build.
	process := filepath.Join(proc, "42")
	if err := os.Mkdir(process, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(first.Bin, "program"), filepath.Join(process, "exe")); err != nil {
		t.Fatal(err)
	}
	paths, err := unpack(second, root, proc)
	if err != nil {
		t.Fatal(err)
	}
	wantOnly(t, root, first.Digest, paths.Digest)
	wantWhole(t, first, "one")

	if err := os.RemoveAll(process); err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(second, root, proc); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, root, paths.Digest)
	wantWhole(t, paths, "two")
}

func TestUnpackTogether(t *testing.T) {
	root := t.TempDir()
	files := bundle(t, "one")
	failures := make(chan error)
	for range 8 {
		go func() {
			paths, err := unpack(files, root, noProcesses)
			if err == nil {
				_, err = os.Stat(filepath.Join(paths.Bin, "program"))
			}
			failures <- err
		}()
	}
	for range 8 {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
}

// TestEmbedded unpacks the helpers that make has embedded, and looks for the files that
// other packages use.
func TestEmbedded(t *testing.T) {
	root := t.TempDir()
	paths, err := Unpack(root)
	if errors.Is(err, ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if crictl, err := Tool(root, "crictl"); err != nil {
		t.Error(err)
	} else if output, err := exec.Command(crictl, "--version").Output(); err != nil || !strings.Contains(string(output), "crictl version v") {
		t.Errorf("crictl --version: %q, %v", output, err)
	}
	for _, name := range []string{
		"runc", "containerd-shim-runc-v2", "kedge-cni", "bridge", "host-local", "loopback", "portmap", "bandwidth", "nft",
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
	} {
		info, err := os.Stat(filepath.Join(paths.Bin, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	image, err := os.ReadFile(paths.PauseArchive)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(image, fmt.Appendf(nil, "%q", PauseImage)) {
		t.Errorf("the pause archive has no image called %s", PauseImage)
	}
}
