package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// mounter mounts by system calls whatever the kernel can mount without help: binds, remounts, and
// the file systems without a device that emptyDir volumes use. So a node needs no mount(8) for
// kedge's own volumes. Everything else goes to upstream's mounter, which runs mount(8). NFS, CIFS,
// FUSE and the detection of file systems need its helper programs and daemons (in systemd scopes).
//
// Two kinds of mounts do not use this mounter: raw block volumes, for which
// k8s.io/kubernetes/pkg/volume/util/volumepathhandler creates its own mounter and runs losetup, and
// mounts that CSI drivers make in their pods.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/util/volumepathhandler/volume_path_handler.go mapBindMountDevice unmapBindMountDevice
type mounter struct {
	mount.Interface // upstream's
}

var _ mount.MounterForceUnmounter = (*mounter)(nil)

// mountOptions are mount(8)'s names for the flags of mount(2), as in util-linux's
// libmount/src/optmap.c, each with the flags that it sets and clears.
var mountOptions = map[string]struct{ set, clear uintptr }{
	"defaults":      {},
	"_netdev":       {}, // has a meaning only for callers of mount(8)
	"bind":          {set: unix.MS_BIND},
	"remount":       {set: unix.MS_REMOUNT},
	"ro":            {set: unix.MS_RDONLY},
	"rw":            {clear: unix.MS_RDONLY},
	"nosuid":        {set: unix.MS_NOSUID},
	"suid":          {clear: unix.MS_NOSUID},
	"nodev":         {set: unix.MS_NODEV},
	"dev":           {clear: unix.MS_NODEV},
	"noexec":        {set: unix.MS_NOEXEC},
	"exec":          {clear: unix.MS_NOEXEC},
	"sync":          {set: unix.MS_SYNCHRONOUS},
	"async":         {clear: unix.MS_SYNCHRONOUS},
	"dirsync":       {set: unix.MS_DIRSYNC},
	"noatime":       {set: unix.MS_NOATIME},
	"atime":         {clear: unix.MS_NOATIME},
	"nodiratime":    {set: unix.MS_NODIRATIME},
	"diratime":      {clear: unix.MS_NODIRATIME},
	"relatime":      {set: unix.MS_RELATIME},
	"norelatime":    {clear: unix.MS_RELATIME},
	"strictatime":   {set: unix.MS_STRICTATIME},
	"nostrictatime": {clear: unix.MS_STRICTATIME},
	"nosymfollow":   {set: unix.MS_NOSYMFOLLOW},
	"symfollow":     {clear: unix.MS_NOSYMFOLLOW},
}

// shownFlags pairs the flags that statfs(2) reports for a mount with those that mount(2) takes.
// Most of these pairs have one value, but not all.
var shownFlags = []struct{ shown, flag uintptr }{
	{unix.ST_RDONLY, unix.MS_RDONLY},
	{unix.ST_NOSUID, unix.MS_NOSUID},
	{unix.ST_NODEV, unix.MS_NODEV},
	{unix.ST_NOEXEC, unix.MS_NOEXEC},
	{unix.ST_NOATIME, unix.MS_NOATIME},
	{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
	{unix.ST_RELATIME, unix.MS_RELATIME},
	{0x2000 /* ST_NOSYMFOLLOW */, unix.MS_NOSYMFOLLOW},
}

// request is one mount, with its options split into flags and data.
type request struct {
	source, target, fstype string
	set, clear             uintptr
	data                   string // for the file system, possibly secret
	shown                  string // the options that may appear in messages
}

func newRequest(source, target, fstype string, options, sensitive []string) request {
	r := request{source: source, target: target, fstype: fstype, shown: strings.Join(options, ",")}
	if len(sensitive) > 0 {
		r.shown += " and secret ones"
	}
	var data []string
	for _, option := range splitOptions(slices.Concat(options, sensitive)) {
		flag, known := mountOptions[option]
		if !known {
			data = append(data, option)
			continue
		}
		// The last option wins, as in mount(8).
		r.set = r.set&^flag.clear | flag.set
		r.clear = r.clear&^flag.set | flag.clear
	}
	r.data = strings.Join(data, ",")
	return r
}

// splitOptions splits options at commas, except commas within quotes, which SELinux contexts
// have.
func splitOptions(options []string) []string {
	var quoted bool
	return strings.FieldsFunc(strings.Join(options, ","), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
}

// forKernel tells whether the kernel can do this mount without mount(8).
func (r request) forKernel() bool {
	return r.set&(unix.MS_BIND|unix.MS_REMOUNT) != 0 || r.fstype == "tmpfs" || r.fstype == "hugetlbfs"
}

func (r request) do() error {
	var err error
	switch {
	case r.set&unix.MS_BIND != 0:
		err = r.bind()
	case r.set&unix.MS_REMOUNT != 0:
		var has uintptr
		if has, err = flagsOf(r.target); err == nil {
			err = unix.Mount(r.source, r.target, r.fstype, has&^r.clear|r.set, r.data)
		}
	default:
		err = unix.Mount(r.source, r.target, r.fstype, r.set, r.data)
	}
	if err != nil {
		return fmt.Errorf("mount %q on %q (type %q, options %q): %w", r.source, r.target, r.fstype, r.shown, err)
	}
	return nil
}

// bind makes a bind mount with the options of its source and the requested ones. The kernel
// applies the latter only in a second call. As in upstream's mounter, an option of the source cannot
// be removed (as ro by rw), and options for the file system are ignored.
//
//upstream:relies-on k8s.io/mount-utils/mount_linux.go Mounter.MountSensitive Mounter.MountSensitiveWithoutSystemdWithMountFlags
//upstream:relies-on k8s.io/mount-utils/mount.go MakeBindOptsSensitive
func (r request) bind() error {
	if err := unix.Mount(r.source, r.target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	has, err := flagsOf(r.target)
	if want := r.set &^ (unix.MS_BIND | unix.MS_REMOUNT); err == nil && want&^has != 0 {
		err = unix.Mount("", r.target, "", unix.MS_BIND|unix.MS_REMOUNT|has|want, "")
	}
	if err != nil {
		// A mount that should be read-only must not stay writable.
		return errors.Join(err, unix.Unmount(r.target, unix.MNT_DETACH))
	}
	return nil
}

// flagsOf returns the flags, as for mount(2), of the mount that path is on.
func flagsOf(path string) (uintptr, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, fmt.Errorf("find mount options: %w", err)
	}
	var flags uintptr
	for _, f := range shownFlags {
		if uintptr(stat.Flags)&f.shown != 0 {
			flags |= f.flag
		}
	}
	return flags, nil
}

// Mount implements mount.Interface.
func (m *mounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements mount.Interface. Sensitive options never appear in an error or a log.
func (m *mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	if r := newRequest(source, target, fstype, options, sensitive); r.forKernel() {
		return r.do()
	}
	return m.Interface.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemd implements mount.Interface.
func (m *mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

// MountSensitiveWithoutSystemdWithMountFlags implements mount.Interface. The only flag of mount(8)
// that the kubelet uses is --no-canonicalize, which is how the system call behaves anyway.
func (m *mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	foreign := slices.ContainsFunc(flags, func(flag string) bool { return flag != "--no-canonicalize" })
	if r := newRequest(source, target, fstype, options, sensitive); r.forKernel() && !foreign {
		return r.do()
	}
	return m.Interface.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, flags)
}

// Unmount implements mount.Interface. It returns nil if nothing is mounted on target.
func (m *mounter) Unmount(target string) error { return unmount(target, 0) }

// UnmountWithForce implements mount.MounterForceUnmounter. If the unmounting takes longer than
// timeout, it abandons the file system's server (MNT_FORCE).
func (m *mounter) UnmountWithForce(target string, timeout time.Duration) error {
	done := make(chan error, 1)
	// The system call cannot be interrupted. The forced one makes it return.
	go func() { done <- unmount(target, 0) }()
	select {
	case err := <-done:
		return err
	case <-time.After(timeout):
		return unmount(target, unix.MNT_FORCE)
	}
}

// CanSafelySkipMountPointCheck implements mount.Interface. Unmount needs no check.
func (m *mounter) CanSafelySkipMountPointCheck() bool { return true }

func unmount(target string, flags int) error {
	// EINVAL means "not a mount point". umount(8) understands it in the same way.
	if err := unix.Unmount(target, flags); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %q: %w", target, err)
	}
	return nil
}
