package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"pvc-8b6c6a5e-7f0e-4b5c-9d8e-000000000000", "A.b", strings.Repeat("a", maxName)} {
		if err := CheckName(name); err != nil {
			t.Errorf("CheckName(%q): got error %v, want none", name, err)
		}
	}
	s := NewStore(t.TempDir(), t.TempDir())
	for _, name := range []string{"", ".", "..", "../x", "a/b", ".volumes", "-rf", "a b", "a\x00b", "ä", "a\n", strings.Repeat("a", maxName+1)} {
		if _, err := s.Create(t.Context(), name, Spec{Size: MinSize}); !errors.Is(err, ErrName) {
			t.Errorf("create %q: %v", name, err)
		}
		if err := s.Delete(t.Context(), name, false); err != nil {
			t.Errorf("delete %q: %v", name, err)
		}
		if err := s.Stage(name, t.TempDir(), nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("stage %q: %v", name, err)
		}
	}
}

// TestRefusals asks for volumes that cannot be made, and checks the errors.
func TestRefusals(t *testing.T) {
	s := newStore(t)
	file := filepath.Join(s.node, "file")
	must(t, os.MkdirAll(s.node, 0o700))
	write(t, file, "")
	create(t, s, "block", Spec{Size: MinSize, Block: true})
	create(t, s, "one", Spec{Size: MinSize})
	for name, c := range map[string]struct {
		spec Spec
		want error
		text string
	}{
		"larger than the disk":   {Spec{Size: 1 << 50}, ErrNoSpace, "the largest possible volume has"},
		"base directory missing": {Spec{Base: "/not/there", Size: MinSize}, ErrImpossible, "mount its disk"},
		"base directory a file":  {Spec{Base: file, Size: MinSize}, ErrImpossible, "is not a directory"},
		"limit too small":        {Spec{Size: 1, Limit: mebibyte}, ErrSize, "the limit is 1 MiB"},
		"negative":               {Spec{Size: -1}, ErrSize, ""},
		"overflow":               {Spec{Size: 1<<63 - 1}, ErrSize, ""},
		"block without limit":    {Spec{Block: true, Unlimited: true}, ErrImpossible, "enforce: none"},
		"block as file system":   {Spec{Source: "block"}, ErrImpossible, "a raw block device"},
		"source of another kind": {Spec{Source: "one", FSType: "xfs"}, ErrImpossible, "an image with xfs"},
		"source missing":         {Spec{Source: "not-there"}, ErrNotFound, "not-there"},
		"image as a directory":   {Spec{Source: "one", Unlimited: true}, ErrImpossible, "a directory"},
	} {
		_, err := s.Create(t.Context(), "new", c.spec)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %q", name, err, c.text)
		}
	}
	for name, spec := range map[string]Spec{
		"size": {Size: 2 * MinSize}, "file system": {Size: MinSize, FSType: "xfs"}, "block": {Size: MinSize, Block: true},
		"shared": {Size: MinSize, Shared: true}, "source": {Size: MinSize, Source: "block"}, "base": {Size: MinSize, Base: s.node},
	} {
		if _, err := s.Create(t.Context(), "one", spec); !errors.Is(err, ErrExists) {
			t.Errorf("the same name with another %s: %v", name, err)
		}
	}
	if left, err := s.Leftovers(); err != nil || len(left) > 0 {
		t.Errorf("got leftovers %v, %v, want none", left, err)
	}
}

// TestWithoutTools hides loop devices and mkfs from this process.
func TestWithoutTools(t *testing.T) {
	s := newStore(t)
	mkfs, err := program("mkfs.ext4")
	must(t, err)
	mkfs, err = filepath.EvalSymlinks(mkfs)
	must(t, err)
	for _, c := range []struct{ path, want string }{{mkfs, "install the package e2fsprogs"}, {"/dev/loop-control", "loop"}} {
		must(t, unix.Mount("/dev/null", c.path, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(c.path, 0)) })
		_, err := s.Create(t.Context(), "one", Spec{Size: MinSize})
		if !errors.Is(err, ErrImpossible) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "local-unlimited") {
			t.Errorf("without %s: got %v, want an error that names it and local-unlimited", c.path, err)
		}
	}
	if _, err := s.Room(Spec{}); !errors.Is(err, ErrImpossible) {
		t.Errorf("room without loop devices: %v", err)
	}
	create(t, s, "one", Spec{Unlimited: true})
	write(t, use(t, s, "one")+"/file", "a plain directory")
	release(t, s, "one")
	must(t, s.Delete(t.Context(), "one", false))
}

// TestWithoutNodes has a /dev as in a container: it has none of the loop devices.
func TestWithoutNodes(t *testing.T) {
	s := newStore(t)
	dev := t.TempDir()
	must(t, unix.Mount("tmpfs", dev, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(dev, unix.MNT_DETACH)) })
	for _, name := range []string{"null", "loop-control"} {
		var stat unix.Stat_t
		must(t, unix.Stat("/dev/"+name, &stat))
		must(t, unix.Mknod(dev+"/"+name, stat.Mode, int(stat.Rdev)))
	}
	must(t, unix.Mount(dev, "/dev", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount("/dev", unix.MNT_DETACH)) })
	v := create(t, s, "one", Spec{Size: MinSize})
	write(t, use(t, s, "one")+"/file", "on a loop device")
	// The device is found again whose node was removed.
	nodes, err := filepath.Glob("/dev/loop[0-9]*")
	if must(t, err); len(nodes) == 0 {
		t.Fatal("/dev has no node of a loop device")
	}
	for _, node := range nodes {
		must(t, os.Remove(node))
	}
	found, err := attached(v.image())
	if must(t, err); found == nil {
		t.Fatal("the device of the volume was not found")
	}
	must(t, found.Close())
	release(t, s, "one")
	must(t, s.Delete(t.Context(), "one", false))
}

// TestLinks removes and copies a directory in which a pod has left dangerous links and folders.
func TestLinks(t *testing.T) {
	s := newStore(t)
	outside := t.TempDir()
	write(t, outside+"/file", "precious")
	create(t, s, "one", Spec{Unlimited: true})
	path := use(t, s, "one")
	must(t, os.Symlink(outside, path+"/link"))
	must(t, os.Symlink(outside+"/file", path+"/to file"))
	must(t, os.Symlink("..", path+"/up"))
	must(t, os.Mkdir(path+"/folder", 0o000))
	must(t, os.Link(path+"/to file", path+"/folder/twice"))
	must(t, unix.Mkfifo(path+"/pipe", 0o600))
	write(t, path+"/-rf", "")
	write(t, path+"/folder/file", "inside")
	must(t, unix.Setxattr(path+"/folder/file", "user.test", []byte("kept"), 0))
	must(t, os.Lchown(path+"/folder/file", 7, 8))
	must(t, unix.Chmod(path+"/folder/file", 0o4751))

	// The folders are nested deeper than a path may be long.
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(fd, "deep", 0o700))
		next, err := unix.Openat(fd, "deep", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))

	if _, err := s.Snapshot(t.Context(), "snap", "one"); !errors.Is(err, ErrInUse) {
		t.Errorf("a snapshot of a directory that a pod writes to: %v", err)
	}
	release(t, s, "one")
	if _, err := s.Snapshot(t.Context(), "snap", "one"); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("a snapshot of folders nested too deep: %v", err)
	}
	data := filepath.Join(s.base, "one", "data")
	must(t, os.Rename(data+"/deep", s.base+"/pvc-deep"))
	if _, err := s.Snapshot(t.Context(), "snap", "one"); err != nil {
		t.Errorf("a snapshot of a directory: %v", err)
	}
	create(t, s, "copy", Spec{Unlimited: true, Source: "snap"})
	copied := filepath.Join(s.base, "copy", "data")
	if target, err := os.Readlink(copied + "/link"); err != nil || target != outside {
		t.Errorf("a link is copied to %q, %v", target, err)
	}
	expect(t, copied+"/folder/file", "inside")
	var stat unix.Stat_t
	must(t, unix.Stat(copied+"/folder/file", &stat))
	value := make([]byte, 16)
	n, err := unix.Getxattr(copied+"/folder/file", "user.test", value)
	if stat.Mode&0o7777 != 0o4751 || stat.Uid != 7 || stat.Gid != 8 || err != nil || string(value[:n]) != "kept" {
		t.Errorf("a file is copied with mode %o, owner %d:%d, attribute %q, %v", stat.Mode, stat.Uid, stat.Gid, value[:n], err)
	}

	// A pod that may mount has mounted something in a volume, which must survive the deletion.
	must(t, unix.Mount(outside, data+"/folder", "", unix.MS_BIND, ""))
	if err := s.Delete(t.Context(), "one", false); err == nil || !strings.Contains(err.Error(), "unmount it first") {
		t.Errorf("delete a volume with a mount in it: got %v, want an error that says to unmount it", err)
	}
	if left, err := s.Leftovers(); err != nil || len(left) != 2 { // and pvc-deep
		t.Errorf("got leftovers %v, %v, want two", left, err)
	}
	unmountBelow(t, filepath.Join(s.base, "one"))
	must(t, s.Delete(t.Context(), "one", false))
	must(t, removeFolder(t.Context(), s.base, "pvc-deep"))
	must(t, s.Delete(t.Context(), "copy", false))
	expect(t, outside+"/file", "precious")
	if left, err := s.Leftovers(); err != nil || len(left) > 0 {
		t.Errorf("got leftovers %v, %v, want none", left, err)
	}
}

// TestFullDisk fills the disk with other data.
func TestFullDisk(t *testing.T) {
	s := newStore(t)
	folder := disk(t, "ext4", 200*mebibyte)
	s.base = filepath.Join(folder, "storage")
	create(t, s, "one", Spec{Size: 64 * mebibyte})
	path := use(t, s, "one")
	room, err := s.Room(Spec{})
	must(t, err)
	if _, err := s.Create(t.Context(), "two", Spec{Size: room + mebibyte}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a volume larger than the room: %v", err)
	}
	create(t, s, "two", Spec{Size: room})
	if _, err := s.Snapshot(t.Context(), "snap", "one"); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a snapshot without room: %v", err)
	}
	fill(t, folder+"/file")
	// The volume has what it was promised.
	if written := fill(t, path+"/file"); written < 40*mebibyte {
		t.Errorf("only %d bytes went into a volume on a full disk", written)
	}
	file, err := os.Open(path + "/file")
	must(t, err)
	must(t, file.Sync())
	must(t, file.Close())
	healthy(t, s, "one", path)
	release(t, s, "one")
	for _, name := range []string{"one", "two"} {
		must(t, s.Delete(t.Context(), name, false))
	}
}

// TestReflinksArePromised makes snapshots that share blocks, and then writes to the volume.
func TestReflinksArePromised(t *testing.T) {
	s := newStore(t)
	folder := disk(t, "xfs", 600*mebibyte)
	size := int64(100 * mebibyte)
	create(t, s, "one", Spec{Base: folder, Size: size})
	fill(t, use(t, s, "one")+"/file")
	taken := 0
	for ; ; taken++ {
		_, err := s.Snapshot(t.Context(), fmt.Sprintf("snap%d", taken), "one")
		if errors.Is(err, ErrNoSpace) {
			break
		}
		must(t, err)
	}
	if taken < 2 || taken > 5 {
		t.Errorf("%d snapshots of %d bytes were promised room", taken, size)
	}
	path := s.node + "/pods/one"
	fill(t, path+"/other")
	must(t, os.Remove(path+"/file"))
	fill(t, path+"/file")
	healthy(t, s, "one", path)
}

func TestLeftovers(t *testing.T) {
	s := newStore(t)
	elsewhere := disk(t, "ext4", 100*mebibyte)
	create(t, s, "pvc-1", Spec{Base: elsewhere, Size: MinSize})
	must(t, os.Mkdir(elsewhere+"/pvc-2", 0o700))
	must(t, os.Mkdir(elsewhere+"/others", 0o700))
	// The disk is not mounted.
	hidden := t.TempDir()
	must(t, unix.Mount(hidden, elsewhere, "", unix.MS_BIND, ""))
	left, err := s.Leftovers()
	if err != nil || len(left) != 1 || !strings.Contains(left[0].Reason, "mount its disk") {
		t.Errorf("got leftovers %v, %v, want one that says to mount its disk", left, err)
	}
	if fault, err := s.Fault("pvc-1", ""); err != nil || fault == nil || !fault.Unusable || !strings.Contains(fault.Message, "mount its disk") {
		t.Errorf("got fault %+v, %v, want one that says to mount its disk", fault, err)
	}
	for what, err := range map[string]error{
		"stage":  s.Stage("pvc-1", s.node+"/staging", nil),
		"delete": s.Delete(t.Context(), "pvc-1", false),
	} {
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "mount its disk") {
			t.Errorf("%s without the disk: %v", what, err)
		}
	}
	must(t, unix.Unmount(elsewhere, 0))
	left, err = s.Leftovers()
	if err != nil || len(left) != 1 || left[0].Path != elsewhere+"/pvc-2" {
		t.Errorf("got leftovers %v, %v, want pvc-2 of the other folder", left, err)
	}
	must(t, s.Delete(t.Context(), "pvc-1", false))

	// A damaged record is reported, and does not affect other volumes.
	create(t, s, "pvc-3", Spec{Size: MinSize})
	write(t, s.RecordFile("pvc-4"), "{")
	if _, err := s.Leftovers(); err == nil || !strings.Contains(err.Error(), "pvc-4.json is damaged") {
		t.Errorf("a damaged record: %v", err)
	}
	use(t, s, "pvc-3")
	release(t, s, "pvc-3")
}

// TestCancelled cancels the making of a volume.
func TestCancelled(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.onStep = func(step string) {
		if step == "image allocated" {
			cancel()
		}
	}
	if _, err := s.Create(ctx, "one", Spec{Size: MinSize}); !errors.Is(err, context.Canceled) {
		t.Errorf("create after the context has ended: got %v, want %v", err, context.Canceled)
	}
	if volumes, err := s.List(); err != nil || len(volumes) > 0 {
		t.Errorf("got volumes %v, %v, want none", volumes, err)
	}
}
