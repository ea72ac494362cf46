package volume

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// allSorts makes files of all kinds in a folder.
func allSorts(t *testing.T, folder string) {
	t.Helper()
	must(t, os.MkdirAll(folder+"/a/b/c", 0o755))
	write(t, folder+"/a/file", "text")
	must(t, os.Link(folder+"/a/file", folder+"/a/b/second-name"))
	must(t, os.Symlink("/etc/passwd", folder+"/a/link"))
	must(t, unix.Mkfifo(folder+"/a/pipe", 0o640))
	must(t, unix.Mknod(folder+"/a/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, os.Chmod(folder+"/a/null", 0o666))
	write(t, folder+"/a/b/\xff\n name", "strange")
	must(t, unix.Setxattr(folder+"/a/file", "user.colour", []byte("red\x00\xff"), 0))
	must(t, os.Lchown(folder+"/a/link", 1234, 3000000))
	must(t, os.Chown(folder+"/a/file", 1234, 3000000))
	must(t, os.Chmod(folder+"/a/file", os.ModeSetuid|0o751))
	must(t, os.Chmod(folder+"/a/b", os.ModeSticky|0o700))
	sparse, err := os.Create(folder + "/sparse")
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 5<<20)
	must(t, errors.Join(err, sparse.Close()))
	for _, path := range []string{"/a/file", "/sparse", "/a/b/c", "/a/b", "/a", ""} {
		at := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
		must(t, os.Chtimes(folder+path, at, at))
	}
}

// listing describes everything in a folder, also what no other test of this package looks at.
func listing(t *testing.T, folder string) string {
	t.Helper()
	list := exec.Command("bash", "-c", `cd "$0" && find . ! -name lost+found -printf '%p %y %m %U:%G %n %s %T@ %l\n' | grep -av '^\. ' | sort &&
		stat -c '%a %u:%g' . && find . -type f -exec sha256sum {} + | sort; stat -c '%t:%T' a/null`, folder)
	text, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("list %s: %v\n%s", folder, err, text)
	}
	colour := make([]byte, 16)
	n, err := unix.Getxattr(folder+"/a/file", "user.colour", colour)
	must(t, err)
	return fmt.Sprintf("%s%q", text, colour[:n])
}

// TestExport checks that an export has everything, and that writes after its beginning are not in it.
func TestExport(t *testing.T) {
	for name, spec := range map[string]Spec{
		"ext4": {Size: 64 * mebibyte}, "xfs": {Size: MinXFS, FSType: "xfs"}, "directory": {Unlimited: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			create(t, s, "one", spec)
			path := use(t, s, "one")
			allSorts(t, path)
			want := listing(t, path)
			var export strings.Builder
			writer := writerFunc(func(p []byte) (int, error) {
				if export.Len() == 0 && name != "directory" {
					write(t, path+"/later", "not in the copy") // the file system is not frozen any more
				}
				return export.Write(p)
			})
			must(t, s.Export(t.Context(), "one", writer, directly))
			described, err := s.Describe("one")
			must(t, err)
			if volumes, err := s.List(); err != nil || len(volumes) != 1 {
				t.Errorf("after the export there are %d volumes, %v, want 1", len(volumes), err)
			}
			release(t, s, "one")
			must(t, s.Delete(t.Context(), "one", false))

			other := newStore(t)
			described.Base = "/not/there"
			made, err := other.Import(t.Context(), "one", described, strings.NewReader(export.String()))
			must(t, err)
			if made.Size < spec.Size {
				t.Errorf("got a volume of %d bytes, want %d", made.Size, spec.Size)
			}
			path = use(t, other, "one")
			if got := listing(t, path); got != want {
				t.Errorf("got these files:\n%s\nwant:\n%s", got, want)
			}
			var stat unix.Stat_t
			must(t, unix.Stat(path+"/sparse", &stat))
			if stat.Blocks*512 > mebibyte {
				t.Errorf("a file with a hole takes %d bytes", stat.Blocks*512)
			}
			healthy(t, other, "one", path)
		})
	}
}

func directly(do func() error) error { return do() }

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestExportOfUnused checks volumes that no pod has ever used, and raw block volumes.
func TestExportOfUnused(t *testing.T) {
	s := newStore(t)
	create(t, s, "unused", Spec{Size: 64 * mebibyte})
	create(t, s, "raw", Spec{Size: 64 * mebibyte, Block: true})
	image, err := os.OpenFile(s.base+"/raw/image", os.O_WRONLY, 0)
	must(t, err)
	_, err = image.WriteAt([]byte("in the middle"), 20<<20)
	must(t, errors.Join(err, image.Close()))
	other := newStore(t)
	for _, name := range []string{"unused", "raw"} {
		var export strings.Builder
		must(t, s.Export(t.Context(), name, &export, directly))
		described, err := s.Describe(name)
		must(t, err)
		_, err = other.Import(t.Context(), name, described, strings.NewReader(export.String()))
		must(t, err)
	}
	if entries, err := os.ReadDir(use(t, other, "unused")); err != nil || len(entries) > 0 {
		t.Errorf("an empty volume came back with %v, %v", entries, err)
	}
	before, err := os.ReadFile(s.base + "/raw/image")
	must(t, err)
	after, err := os.ReadFile(other.base + "/raw/image")
	must(t, err)
	if string(before) != string(after) {
		t.Error("a raw block volume came back with other bytes")
	}
}

// TestImportRefuses checks archives that nobody exports: nothing may be made outside of the volume, and nothing is left.
func TestImportRefuses(t *testing.T) {
	s := newStore(t)
	outside := s.node + "/outside"
	must(t, os.MkdirAll(outside, 0o755))
	write(t, outside+"/secret", "secret")
	top := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := tar.Header{Name: "./out", Typeflag: tar.TypeSymlink, Linkname: outside}
	for name, entries := range map[string][]tar.Header{
		"no top folder":             {file("./a")},
		"an absolute name":          {top, file(outside + "/a")},
		"a name that goes up":       {top, file("./../a")},
		"the name of the folder":    {top, file("./.")},
		"a file in a link":          {top, link, file("./out/a")},
		"a folder over a link":      {top, link, {Name: "./out/", Typeflag: tar.TypeDir}},
		"a file over a link":        {top, link, file("./out")},
		"another name outside":      {top, link, {Name: "./b", Typeflag: tar.TypeLink, Linkname: "./out/secret"}},
		"another name that goes up": {top, {Name: "./b", Typeflag: tar.TypeLink, Linkname: "./../../../outside/secret"}},
		"a folder that is closed":   {top, {Name: "./a/", Typeflag: tar.TypeDir}, {Name: "./b/", Typeflag: tar.TypeDir}, file("./a/c")},
		"an unknown kind":           {top, {Name: "./a", Typeflag: tar.TypeXGlobalHeader}},
	} {
		t.Run(name, func(t *testing.T) {
			var export strings.Builder
			w := tar.NewWriter(&export)
			for _, entry := range entries {
				must(t, w.WriteHeader(&entry))
			}
			must(t, w.Close())
			if _, err := s.Import(t.Context(), "new", Content{Unlimited: true, Size: mebibyte}, strings.NewReader(export.String())); err == nil {
				t.Error("the archive was accepted")
			}
			if volumes, err := s.List(); err != nil || len(volumes) > 0 {
				t.Errorf("it left %v, %v", volumes, err)
			}
		})
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside of the volumes is %v, %v", entries, err)
	}
	cut := strings.NewReader("not an archive")
	if _, err := s.Import(t.Context(), "new", Content{Size: 64 * mebibyte}, cut); err == nil {
		t.Error("what is no archive was accepted")
	}
}

// exported returns an export with one file.
func exported() io.Reader {
	var export strings.Builder
	w := tar.NewWriter(&export)
	for _, h := range []tar.Header{{Name: "./", Typeflag: tar.TypeDir, Mode: 0o777}, {Name: "./file", Typeflag: tar.TypeReg, Size: 4, Mode: 0o644}} {
		if err := w.WriteHeader(&h); err != nil {
			panic(err) // the headers are valid
		}
	}
	fmt.Fprint(w, "back")
	w.Close()
	return strings.NewReader(export.String())
}
