package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestLocks(t *testing.T) {
	l := locks{held: map[string]int{}}
	first, err := l.read("a")
	must(t, err)
	second, err := l.read("a")
	must(t, err)
	if _, err := l.write("a"); !errors.Is(err, ErrBusy) {
		t.Errorf("written while it is read: %v", err)
	}
	first()
	second()
	unlock, err := l.write("a")
	must(t, err)
	for _, lock := range []func(string) (func(), error){l.read, l.write} {
		if _, err := lock("a"); !errors.Is(err, ErrBusy) {
			t.Errorf("locked twice: %v", err)
		}
	}
	if _, err := l.write("b"); err != nil {
		t.Error(err)
	}
	unlock()
	if len(l.held) != 1 {
		t.Errorf("held are %v", l.held)
	}
}

// TestMoved moves the default storage directory, as when the data directory is moved.
func TestMoved(t *testing.T) {
	s := newStore(t)
	create(t, s, "one", Spec{Size: MinSize})
	write(t, use(t, s, "one")+"/file", "moved")
	release(t, s, "one")
	moved := s.base + "-moved"
	must(t, os.Rename(s.base, moved))
	s = NewStore(moved, s.node)
	expect(t, use(t, s, "one")+"/file", "moved")
}

// TestManyAtOnce asks at the same time for more volumes than there is space for.
func TestManyAtOnce(t *testing.T) {
	s := newStore(t)
	s.base = filepath.Join(disk(t, "ext4", 300*mebibyte), "storage")
	room, err := s.Room(Spec{})
	must(t, err)
	const size = 40 * mebibyte
	var wait sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		wait.Go(func() { _, errs[i] = s.Create(t.Context(), fmt.Sprintf("volume-%d", i), Spec{Size: size}) })
	}
	wait.Wait()
	made := int64(0)
	for _, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, ErrNoSpace) {
			t.Error(err)
		}
	}
	if made == 0 || made > room/size {
		t.Errorf("%d volumes of %d were made where there was room for %d", made, int64(size), room)
	}
	if volumes, err := s.List(); err != nil || len(volumes) != int(made) {
		t.Errorf("there are %d records, %v; want %d", len(volumes), err, made)
	}
}

// TestPromised measures what others can still take while a volume, a snapshot and a copy are made.
func TestPromised(t *testing.T) {
	s := newStore(t)
	for _, fstype := range []string{"ext4", "xfs"} {
		base, size := disk(t, fstype, 1<<30), int64(64*mebibyte)
		room, err := s.Room(Spec{Base: base})
		must(t, err)
		var steps []string
		s.onStep = func(step string) {
			steps = append(steps, step)
			if now, err := s.room(base, ""); err != nil || now > room-size {
				t.Errorf("%s: %s: there is room for %s, %v; there was room for %s, and %s are taken", fstype, step, bytes(now), err, bytes(room), bytes(size))
			}
		}
		create(t, s, fstype, Spec{Base: base, Size: size})
		write(t, use(t, s, fstype)+"/file", strings.Repeat("much", 8*mebibyte))
		release(t, s, fstype)
		size += 32 * mebibyte
		_, err = s.Snapshot(t.Context(), fstype+"-snap", fstype)
		must(t, err)
		size += 64 * mebibyte
		create(t, s, fstype+"-copy", Spec{Base: base, Size: 64 * mebibyte, Source: fstype + "-snap"})
		if len(steps) < 9 {
			t.Errorf("%s: looked only at the steps %s", fstype, steps)
		}
		s.onStep = func(string) {}
	}
}

// TestQuota needs a kernel with project quotas for ext4 (CONFIG_QFMT_V2).
func TestQuota(t *testing.T) {
	s := newStore(t)
	image, folder := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	write(t, image, "")
	must(t, os.Truncate(image, 400*mebibyte))
	testutil.Command(t, "mkfs.ext4 -q -O quota,project "+image)
	dev, err := attach(image, true)
	must(t, err)
	defer dev.Close()
	if err := unix.Mount(dev.Name(), folder, "ext4", 0, "prjquota"); err != nil {
		t.Skipf("this kernel has no project quotas: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(folder, unix.MNT_DETACH)) })
	room, err := s.Room(Spec{Base: folder})
	must(t, err)
	size := int64(64 * mebibyte)
	v := create(t, s, "one", Spec{Base: folder, Size: size})
	if v.Kind != Quota {
		t.Fatalf("the volume is kept as %s", v.Kind)
	}
	if now, err := s.Room(Spec{Base: folder}); err != nil || now > room-size {
		t.Errorf("got room for %d, %v, want at most %d", now, err, room-size)
	}
	path := use(t, s, "one")
	usage, err := s.Usage("one", path)
	if err != nil || usage.Total != size {
		t.Errorf("df shows %+v, %v of a volume of %d", usage, err, size)
	}
	file, err := os.Create(path + "/file")
	must(t, err)
	defer file.Close()
	// ext4 does not limit processes with CAP_SYS_RESOURCE.
	writer := exec.Command("dd", "if=/dev/zero", "bs=1M", "count=128")
	writer.Stdout, writer.SysProcAttr = file, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var said strings.Builder
	writer.Stderr = &said
	if err := writer.Run(); err == nil || !strings.Contains(said.String(), "quota exceeded") && !strings.Contains(said.String(), "No space") {
		t.Errorf("more went into a volume than it is large: %v, %s", err, &said)
	}
	write(t, folder+"/file", "there is room")
	if got, err := s.Expand("one", 2*size, 0); err != nil || got != 2*size {
		t.Errorf("grow: got %d, %v, want %d", got, err, 2*size)
	}
	write(t, path+"/more", "there is room")
	release(t, s, "one")
	_, err = s.Snapshot(t.Context(), "snap", "one")
	must(t, err)
	create(t, s, "copy", Spec{Base: folder, Size: 2 * size, Source: "snap"})
	expect(t, use(t, s, "copy")+"/more", "there is room")
	release(t, s, "copy")
	for name, snapshot := range map[string]bool{"one": false, "snap": true, "copy": false} {
		must(t, s.Delete(t.Context(), name, snapshot))
	}
	if used, err := quotaUsed(folder, v.Project); err != nil || used != 0 {
		t.Errorf("the project has %d bytes still, %v", used, err)
	}
}
