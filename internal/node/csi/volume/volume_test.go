package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// The tests mount file systems, so they run in a mount namespace of their own. Whatever happens, the
// kernel unmounts and detaches everything when that namespace ends.
func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

const mebibyte = 1 << 20

// newStore returns a store with its volumes on a disk of the test's own. How much room the machine's
// disk has does not matter then, because an image takes only what is written.
func newStore(t *testing.T) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	folder := disk(t, "ext4", 16<<30)
	store := NewStore(filepath.Join(folder, "storage"), filepath.Join(folder, "kubelet"))
	t.Cleanup(func() {
		unmountBelow(t, folder)
		detachBelow(t, folder)
	})
	return store
}

// detachBelow detaches raw block volumes, which unmounting does not detach.
func detachBelow(t *testing.T, folder string) {
	t.Helper()
	for _, number := range loopsBelow(t, folder) {
		dev, err := os.Open("/dev/" + number)
		must(t, err)
		must(t, errors.Join(detach(dev), dev.Close()))
	}
}

// loopsBelow returns the names of the loop devices of files in a folder.
func loopsBelow(t *testing.T, folder string) []string {
	t.Helper()
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	var names []string
	for _, path := range backing {
		// A loop device of another program may vanish in the meantime.
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), folder+"/") {
			names = append(names, filepath.Base(filepath.Dir(filepath.Dir(path))))
		}
	}
	return names
}

// unmountBelow unmounts everything below a folder, so that it can be removed.
func unmountBelow(t *testing.T, folder string) {
	t.Helper()
	all, err := mountPoints()
	if err != nil {
		t.Error(err)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if strings.HasPrefix(all[i].MountPoint, folder+"/") {
			if err := unix.Unmount(all[i].MountPoint, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
}

// disk mounts a new file system of this size in bytes and returns where.
func disk(t *testing.T, fstype string, size int64) string {
	t.Helper()
	image, folder := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, os.Truncate(image, size))
	testutil.Command(t, "mkfs."+fstype+" -q "+image)
	dev, err := attach(image, true)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	must(t, unix.Mount(dev.Name(), folder, fstype, 0, ""))
	t.Cleanup(func() {
		detachBelow(t, folder)
		must(t, unix.Unmount(folder, unix.MNT_DETACH))
	})
	return folder
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create makes a volume and fails the test if that fails.
func create(t *testing.T, s *Store, name string, spec Spec) *Volume {
	t.Helper()
	v, err := s.Create(t.Context(), name, spec)
	must(t, err)
	return v
}

// use mounts a volume as for a pod, and returns where.
func use(t *testing.T, s *Store, name string, options ...string) string {
	t.Helper()
	must(t, s.Stage(name, s.node+"/staging/"+name, options))
	must(t, os.MkdirAll(s.node+"/pods", 0o700))
	target := s.node + "/pods/" + name
	must(t, s.Publish(name, Publication{Target: target, Options: options}))
	return target
}

func release(t *testing.T, s *Store, name string) {
	t.Helper()
	must(t, s.Unpublish(s.node+"/pods/"+name))
	must(t, s.Unstage(name, s.node+"/staging/"+name))
}

// healthy checks that nothing is wrong with a volume that is mounted at path, or nowhere.
func healthy(t *testing.T, s *Store, name, path string) {
	t.Helper()
	if fault, err := s.Fault(name, path); err != nil || fault != nil {
		t.Errorf("volume %s: got fault %+v, %v, want none", name, fault, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func expect(t *testing.T, path, want string) {
	t.Helper()
	if text, err := os.ReadFile(path); err != nil || string(text) != want {
		t.Errorf("%s is %q, %v; want %q", path, text, err, want)
	}
}

// fill writes until there is no space, and returns how many bytes it wrote.
func fill(t *testing.T, path string) int64 {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	defer file.Close()
	block := make([]byte, mebibyte)
	for written := int64(0); ; {
		n, err := file.Write(block)
		written += int64(n)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("write past the size: %v, want ENOSPC", err)
		}
		return written
	}
}

func TestSizeIsEnforced(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		t.Run(fstype, func(t *testing.T) {
			s := newStore(t)
			size := map[string]int64{"ext4": 64 * mebibyte, "xfs": MinXFS}[fstype]
			for _, name := range []string{"one", "two"} {
				create(t, s, name, Spec{Size: size, FSType: fstype})
			}
			one, two := use(t, s, "one"), use(t, s, "two")
			if written := fill(t, one+"/file"); written > size || written < size/2 {
				t.Errorf("%d bytes went into a volume of %d", written, size)
			}
			write(t, two+"/file", "there is room")
			write(t, filepath.Join(s.base, "file"), "there is room")
			usage, err := s.Usage("one", one)
			must(t, err)
			if fstype == "ext4" && usage.Total != size || usage.Free > mebibyte {
				t.Errorf("df shows %+v of a volume of %d", usage, size)
			}
			if entries, err := os.ReadDir(two); err != nil || len(entries) != 1 {
				t.Errorf("a new volume is not empty: %v, %v", entries, err)
			}
			release(t, s, "one")
			must(t, s.Delete(t.Context(), "one", false))
			if _, err := os.Lstat(filepath.Join(s.base, "one")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the volume is there still: %v", err)
			}
			if err := s.Delete(t.Context(), "two", false); !errors.Is(err, ErrInUse) {
				t.Errorf("delete a volume that a pod uses: got %v, want %v", err, ErrInUse)
			}
			if err := s.Delete(t.Context(), "one", false); err != nil {
				t.Errorf("delete a volume that is gone: %v", err)
			}
		})
	}
}

func TestGrow(t *testing.T) {
	for fstype, size := range map[string]int64{"ext4": 64 * mebibyte, "xfs": MinXFS} {
		t.Run(fstype, func(t *testing.T) {
			s := newStore(t)
			create(t, s, "one", Spec{Size: size, FSType: fstype})
			path := use(t, s, "one")
			write(t, path+"/file", "before")
			got, err := s.Expand("one", 4*size, 0)
			if errors.Is(err, ErrInUse) && fstype == "ext4" {
				// The kernel does not let this process grow it while mounted: it grows between two
				// pods.
				release(t, s, "one")
				use(t, s, "one")
				got, err = s.Expand("one", 4*size, 0)
			}
			if err != nil || got != 4*size {
				t.Fatalf("grow: got %d, %v, want %d", got, err, 4*size)
			}
			expect(t, path+"/file", "before")
			if usage, err := s.Usage("one", path); err != nil || usage.Total < 7*size/2 {
				t.Errorf("df: got %+v, %v, want about %d bytes", usage, err, 4*size)
			}
			if got, err := s.Expand("one", size, 0); err != nil || got != 4*size {
				t.Errorf("shrink: got %d, %v, want it to stay %d", got, err, 4*size)
			}
			if _, err := s.Expand("one", 1<<50, 0); !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "largest possible") {
				t.Errorf("grow beyond the disk: got error %v, want one that names the largest possible size", err)
			}
		})
	}
}

// TestGrowUnused grows a volume that no pod uses. The next pod finds it grown, on any host.
func TestGrowUnused(t *testing.T) {
	s := newStore(t)
	const size = 64 * mebibyte
	create(t, s, "one", Spec{Size: size})
	write(t, use(t, s, "one")+"/file", "before")
	release(t, s, "one")
	if got, err := s.Expand("one", 4*size, 0); err != nil || got != 4*size {
		t.Fatalf("grow: got %d, %v, want %d", got, err, 4*size)
	}
	path := use(t, s, "one")
	expect(t, path+"/file", "before")
	if usage, err := s.Usage("one", path); err != nil || usage.Total < 7*size/2 {
		t.Errorf("df: got %+v, %v, want about %d bytes", usage, err, 4*size)
	}
	if got, err := s.Expand("one", 4*size, 0); err != nil || got != 4*size {
		t.Errorf("grow again, as the kubelet does: got %d, %v, want %d", got, err, 4*size)
	}
}

// TestSnapshot makes a snapshot while a pod writes, restores it into a larger volume, and deletes its
// source.
func TestSnapshot(t *testing.T) {
	for base, reflinks := range map[string]bool{"ext4": false, "xfs": true, "btrfs": true} {
		t.Run(base, func(t *testing.T) {
			s := newStore(t)
			folder := disk(t, base, 600*mebibyte)
			size := int64(64 * mebibyte)
			create(t, s, "one", Spec{Base: folder, Size: size})
			path := use(t, s, "one")
			write(t, path+"/file", "then")
			snapshot, err := s.Snapshot(t.Context(), "snap", "one")
			must(t, err)
			if snapshot.Reflinked != reflinks {
				t.Errorf("reflinked is %v on %s", snapshot.Reflinked, base)
			}
			var stat unix.Stat_t
			must(t, unix.Stat(snapshot.image(), &stat))
			if stat.Size != size || !reflinks && stat.Blocks*512 > size/2 {
				t.Errorf("the snapshot of a nearly empty volume takes %d of %d bytes, want less than half", stat.Blocks*512, stat.Size)
			}
			write(t, path+"/file", "now")
			if _, err := s.Snapshot(t.Context(), "snap", "one"); err != nil {
				t.Errorf("make the same snapshot again: %v", err)
			}
			release(t, s, "one")
			must(t, s.Delete(t.Context(), "one", false))
			if _, err := s.Create(t.Context(), "small", Spec{Base: folder, Size: size / 2, Source: "snap"}); !errors.Is(err, ErrSize) {
				t.Errorf("restore to a smaller volume: got error %v, want %v", err, ErrSize)
			}
			create(t, s, "larger", Spec{Base: folder, Size: 2 * size, Source: "snap"})
			path = use(t, s, "larger")
			expect(t, path+"/file", "then")
			if usage, err := s.Usage("larger", path); err != nil || usage.Total != 2*size {
				t.Errorf("df: got %+v, %v, want %d bytes", usage, err, 2*size)
			}
			must(t, s.Delete(t.Context(), "snap", true))
			create(t, s, "elsewhere", Spec{Source: "larger"})
			expect(t, use(t, s, "elsewhere")+"/file", "then")
		})
	}
}
