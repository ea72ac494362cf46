package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDevice(t *testing.T) {
	s := newStore(t)
	create(t, s, "one", Spec{Size: MinSize, Block: true})
	target := use(t, s, "one")
	must(t, s.Publish("one", Publication{Target: target}))
	if err := s.Publish("one", Publication{Target: s.node + "/pods/second", Single: true}); !errors.Is(err, ErrInUse) {
		t.Errorf("publish for a second pod: got %v, want %v", err, ErrInUse)
	}
	if got, err := s.Expand("one", 2*MinSize, 0); err != nil || got != 2*MinSize {
		t.Errorf("grow: got %d, %v, want %d", got, err, 2*MinSize)
	}
	device, err := os.OpenFile(target, os.O_RDWR, 0)
	must(t, err)
	if size, err := deviceSize(device); err != nil || size != 2*MinSize {
		t.Errorf("got device size %d, %v, want %d", size, err, 2*MinSize)
	}
	_, err = device.WriteAt([]byte("written"), 2*MinSize-512)
	must(t, errors.Join(err, device.Sync(), device.Close()))
	if _, err := s.Snapshot(t.Context(), "snap", "one"); !errors.Is(err, ErrInUse) {
		t.Errorf("a snapshot of a device that a pod has: %v", err)
	}
	if usage, err := s.Usage("one", target); err != nil || usage.Total != 2*MinSize {
		t.Errorf("got usage %+v, %v, want a total of %d", usage, err, 2*MinSize)
	}
	release(t, s, "one")
	_, err = s.Snapshot(t.Context(), "snap", "one")
	must(t, err)
	create(t, s, "copy", Spec{Block: true, Source: "snap"})
	copied, err := os.ReadFile(filepath.Join(s.base, "copy", "image"))
	if err != nil || !strings.HasPrefix(string(copied[2*MinSize-512:]), "written") {
		t.Errorf("the copy is another: %v", err)
	}
	for name, snapshot := range map[string]bool{"one": false, "snap": true, "copy": false} {
		must(t, s.Delete(t.Context(), name, snapshot))
	}
}

// TestPublish checks the options, a second pod, and a target that is taken.
func TestPublish(t *testing.T) {
	s := newStore(t)
	create(t, s, "one", Spec{Size: MinSize})
	if err := s.Publish("one", Publication{Target: s.node + "/early"}); !errors.Is(err, ErrNotStaged) {
		t.Errorf("published before it is staged: %v", err)
	}
	first := use(t, s, "one", "noatime")
	second := s.node + "/pods/second"
	must(t, s.Publish("one", Publication{Target: second, ReadOnly: true}))
	write(t, first+"/file", "shared")
	expect(t, second+"/file", "shared")
	if err := os.WriteFile(second+"/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to where it is read-only: %v", err)
	}
	var stat unix.Statfs_t
	must(t, unix.Statfs(second, &stat))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOATIME | unix.ST_RDONLY); int64(stat.Flags)&want != want {
		t.Errorf("mounted with flags %x", stat.Flags)
	}
	if err := s.Publish("one", Publication{Target: s.node + "/pods/third", Single: true}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "ReadWriteOncePod") {
		t.Errorf("publish a ReadWriteOncePod volume for a second pod: got %v, want %v that names the mode", err, ErrInUse)
	}
	info, err := os.Stat(first)
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the root of the volume is %v, %v", info.Mode(), err)
	}
	for _, path := range []string{s.base, filepath.Join(s.base, "one"), filepath.Join(s.base, recordFolder)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s is %v, %v", path, info.Mode(), err)
		}
	}
	// This is the state after kedge was killed between the system calls of a bind mount.
	must(t, s.Unpublish(second))
	must(t, os.Mkdir(second, 0o700))
	must(t, unix.Mount(first, second, "", unix.MS_BIND, ""))
	must(t, s.Publish("one", Publication{Target: second, ReadOnly: true}))
	if err := os.WriteFile(second+"/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to where it is read-only after a crash: %v", err)
	}
	// This is like a restart: everything is asked of the kernel.
	s = NewStore(s.base, s.node)
	must(t, s.Publish("one", Publication{Target: first, Single: true}))
	must(t, s.Unpublish(second))
	must(t, s.Unpublish(second))
	release(t, s, "one")
	release(t, s, "one")
}

// TestFaultIsTold reports an error of a file system until the file system is checked.
func TestFaultIsTold(t *testing.T) {
	s := newStore(t)
	v := create(t, s, "one", Spec{Size: MinSize})
	path := use(t, s, "one")
	dev, err := attached(v.image())
	must(t, err)
	must(t, dev.Close())
	write(t, filepath.Join("/sys/fs/ext4", filepath.Base(dev.Name()), "trigger_fs_error"), "test")
	var fault *Fault
	// The kernel counts the error a moment later.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if fault, err = s.Fault("one", path); err != nil || fault != nil {
			break
		}
	}
	if err != nil || fault == nil || fault.Unusable || !strings.Contains(fault.Message, "delete the pod") {
		t.Errorf("got fault %+v, %v, want one that says to delete the pod", fault, err)
	}
	release(t, s, "one")
	healthy(t, s, "one", "")
	healthy(t, s, "one", use(t, s, "one"))
	if _, err := s.Usage("one", s.node); !errors.Is(err, ErrNotFound) {
		t.Errorf("usage of a folder where the volume is not mounted: got %v, want %v", err, ErrNotFound)
	}
}

// TestDamaged stages a file system that cannot be repaired automatically.
func TestDamaged(t *testing.T) {
	s := newStore(t)
	v := create(t, s, "one", Spec{Size: MinSize})
	image, err := os.OpenFile(v.image(), os.O_WRONLY, 0)
	must(t, err)
	_, err = image.WriteAt(make([]byte, 2*mebibyte), 0)
	must(t, errors.Join(err, image.Close()))
	if err := s.Stage("one", s.node+"/staging", nil); err == nil || !strings.Contains(err.Error(), "repair it with e2fsck "+v.image()) {
		t.Errorf("mounted: %v", err)
	}
	if left := loopsBelow(t, s.base); len(left) > 0 {
		t.Errorf("the loop devices %v were not removed", left)
	}
	must(t, s.Delete(t.Context(), "one", false))
}

// TestNeverUnstaged has volumes that the kubelet forgot to unstage.
func TestNeverUnstaged(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"deleted", "grown"} {
		create(t, s, name, Spec{Size: 2 * MinSize})
		write(t, use(t, s, name)+"/file", name)
	}
	must(t, s.Unpublish(s.node+"/pods/deleted"))
	must(t, s.Delete(t.Context(), "deleted", false))
	if left := loopsBelow(t, s.base+"/deleted"); len(left) > 0 {
		t.Errorf("the loop devices %v were not removed", left)
	}
	// Not every host lets a mounted file system grow.
	if _, err := s.Expand("grown", 4*MinSize, 0); err != nil && !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	must(t, s.Unpublish(s.node+"/pods/grown"))
	path := use(t, s, "grown")
	expect(t, path+"/file", "grown")
	if usage, err := s.Usage("grown", path); err != nil || usage.Total != 4*MinSize {
		t.Errorf("df shows %+v, %v", usage, err)
	}
	// While a pod uses the volume, it stays mounted.
	file, err := os.Open(path + "/file")
	must(t, err)
	defer file.Close()
	use(t, s, "grown")
	if err := s.Delete(t.Context(), "grown", false); !errors.Is(err, ErrInUse) {
		t.Errorf("delete a volume that a pod uses: got %v, want %v", err, ErrInUse)
	}
}

// TestReserve reserves space for a volume whose file system cannot grow while it is mounted. It grows
// with its next mount at the latest.
func TestReserve(t *testing.T) {
	s := newStore(t)
	create(t, s, "one", Spec{Size: 2 * MinSize})
	write(t, use(t, s, "one")+"/file", "kept")
	must(t, s.Reserve("one", 4*MinSize))
	must(t, s.Reserve("one", 3*MinSize))
	if v, err := s.Get("one"); err != nil || v.Size != 2*MinSize {
		t.Errorf("got record %+v, %v, want the size %d", v, err, 2*MinSize)
	}
	if err := s.Reserve("one", 1<<50); !errors.Is(err, ErrNoSpace) {
		t.Errorf("more than there is: %v", err)
	}
	release(t, s, "one")
	path := use(t, s, "one")
	expect(t, path+"/file", "kept")
	if usage, err := s.Usage("one", path); err != nil || usage.Total != 4*MinSize {
		t.Errorf("df shows %+v, %v", usage, err)
	}
	if got, err := s.Expand("one", 4*MinSize, 0); err != nil || got != 4*MinSize {
		t.Errorf("the kubelet is told %d, %v", got, err)
	}
}

// TestTeardown does what `kedge killall` does before and after it ends the pods.
func TestTeardown(t *testing.T) {
	s := newStore(t)
	block := create(t, s, "block", Spec{Size: MinSize, Block: true})
	target := use(t, s, "block")
	// A pod that is ending may still have the device open.
	device, err := attached(block.image())
	must(t, err)
	frozen := create(t, s, "frozen", Spec{Size: MinSize})
	path := use(t, s, "frozen")
	_, err = s.freeze(frozen)
	must(t, err)
	must(t, s.Thaw())
	write(t, path+"/file", "thawed")
	must(t, s.Unpublish(target))
	must(t, s.Detach())
	must(t, device.Close())
	if dev, err := attached(block.image()); dev != nil || err != nil {
		t.Errorf("attached still: %v, %v", dev, err)
	}
	must(t, s.Detach())
}
