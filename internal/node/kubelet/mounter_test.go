package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// inMountNamespace runs the test again in a process with a mount namespace of its own. It returns
// true in that process.
func inMountNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "KEDGE_TEST_MOUNT_NAMESPACE"
	if os.Getenv(inside) != "" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	again := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), inside+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	output, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("run the test in a mount namespace of its own: %v\n%s", err, output)
	}
	return false
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// delegate is a fake of upstream's mounter that records whether it was called.
type delegate struct {
	mount.Interface
	called bool
}

func (d *delegate) MountSensitive(_, _, _ string, _, _ []string) error {
	d.called = true
	return nil
}

func (d *delegate) MountSensitiveWithoutSystemdWithMountFlags(_, _, _ string, _, _, _ []string) error {
	d.called = true
	return nil
}

func TestRequest(t *testing.T) {
	for name, c := range map[string]struct {
		fstype             string
		options, sensitive []string
		want               request
	}{
		"flags":     {options: []string{"ro", "nosuid,noexec"}, want: request{set: unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC}},
		"last wins": {options: []string{"ro", "rw"}, want: request{clear: unix.MS_RDONLY}},
		"data":      {fstype: "tmpfs", options: []string{"size=5", "noswap", "defaults"}, want: request{data: "size=5,noswap"}},
		"SELinux": {
			fstype:  "tmpfs",
			options: []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`, "size=1"},
			want:    request{data: `context="system_u:object_r:container_file_t:s0:c1,c2",size=1`},
		},
		"secret": {options: []string{"ro"}, sensitive: []string{"password=x", "nodev"}, want: request{set: unix.MS_RDONLY | unix.MS_NODEV, data: "password=x"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newRequest("", "", "", c.options, c.sensitive)
			if strings.Contains(got.shown, "password") {
				t.Errorf("messages would show a secret: %q", got.shown)
			}
			got.shown = ""
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestMounterDelegates(t *testing.T) {
	for name, c := range map[string]struct {
		fstype         string
		options, flags []string
	}{
		"nfs":          {fstype: "nfs"},
		"disk":         {fstype: "ext4", options: []string{"ro"}},
		"unknown type": {},
		"foreign flag": {fstype: "tmpfs", flags: []string{"--no-mtab"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(delegate)
			if err := (&mounter{d}).MountSensitiveWithoutSystemdWithMountFlags("x", "/nowhere", c.fstype, c.options, nil, c.flags); err != nil || !d.called {
				t.Errorf("called upstream's: %t, error: %v", d.called, err)
			}
		})
	}
}

func TestMounterTmpfs(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}
	// mount(8) and umount(8) cannot be found, so only system calls can be used.
	t.Setenv("PATH", "")
	m := &mounter{mount.New("")}
	dir := t.TempDir()
	must(t, m.MountSensitiveWithoutSystemd("tmpfs", dir, "tmpfs", []string{"size=65536", "nosuid"}, nil))
	var stat unix.Statfs_t
	must(t, unix.Statfs(dir, &stat))
	if size := stat.Blocks * uint64(stat.Bsize); size != 65536 {
		t.Errorf("size is %d", size)
	}
	if stat.Flags&unix.ST_NOSUID == 0 {
		t.Error("nosuid was lost")
	}
	if is, err := m.IsMountPoint(dir); err != nil || !is {
		t.Errorf("mount point: %t, %v", is, err)
	}
	// A remount keeps options that are not mentioned.
	must(t, m.Mount("", dir, "", []string{"remount", "ro", "size=131072"}))
	must(t, unix.Statfs(dir, &stat))
	if size := stat.Blocks * uint64(stat.Bsize); size != 131072 || stat.Flags&unix.ST_NOSUID == 0 || stat.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("after the remount: got size %d and flags %x, want 131072, nosuid and read-only", size, stat.Flags)
	}
	must(t, m.Mount("", dir, "", []string{"remount", "rw"}))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))

	must(t, m.UnmountWithForce(dir, time.Minute))
	must(t, m.Unmount(dir)) // it is not an error if nothing is mounted
	if is, err := m.IsMountPoint(dir); err != nil || is {
		t.Errorf("mount point: %t, %v", is, err)
	}
	if err := m.Unmount(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder gave %v", err)
	}
}

func TestMounterBind(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}
	t.Setenv("PATH", "")
	m := &mounter{mount.New("")}
	source, target, nested := t.TempDir(), t.TempDir(), t.TempDir()
	must(t, m.Mount("tmpfs", source, "tmpfs", []string{"noexec"}))
	defer m.Unmount(source)

	must(t, m.MountSensitive(source, target, "", []string{"bind", "ro"}, []string{"password=x"}))
	if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing through the read-only bind gave %v", err)
	}
	must(t, os.WriteFile(filepath.Join(source, "file"), nil, 0o600))
	has, err := flagsOf(target)
	if want := uintptr(unix.MS_RDONLY | unix.MS_NOEXEC); err != nil || has&want != want {
		t.Errorf("flags of the bind are %x, %v", has, err)
	}
	// A bind mount has the options of its source.
	must(t, m.Mount(target, nested, "", []string{"bind", "rw"}))
	if has, err := flagsOf(nested); err != nil || has&unix.MS_RDONLY == 0 {
		t.Errorf("flags of the nested bind are %x, %v", has, err)
	}
	refs, err := m.GetMountRefs(target)
	if err != nil || len(refs) != 2 {
		t.Errorf("references: %v, %v", refs, err)
	}
	must(t, m.Unmount(nested))
	must(t, mount.CleanupMountPoint(target, m, true))
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the clean-up: got %v, want the target removed", err)
	}

	err = m.MountSensitive(source, "/missing", "", []string{"bind"}, []string{"password=x"})
	if err == nil || strings.Contains(err.Error(), "password") {
		t.Errorf("a missing target gave %v", err)
	}
}

func TestMounterSubPath(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}
	t.Setenv("PATH", "")
	volume, pod := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(volume, "file"), []byte("hello"), 0o600))
	subpaths := subpath.New(&mounter{mount.New("")})
	path, _, err := subpaths.PrepareSafeSubpath(subpath.Subpath{
		VolumePath: volume, Path: filepath.Join(volume, "file"), VolumeName: "v", ContainerName: "c", PodDir: pod,
	})
	must(t, err)
	if content, err := os.ReadFile(path); err != nil || string(content) != "hello" {
		t.Errorf("read %q, %v", content, err)
	}
	must(t, subpaths.CleanSubPaths(pod, "v"))
}
