package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// initVariable tells the test binary that it is the first process of a host. Its value is the host's
// initSpec.
const initVariable = "KEDGE_TEST_HOST"

// initSpec has the settings for a host's first process.
type initSpec struct {
	Hostname string
	// Dir is the host's folder on the machine.
	Dir string
	// Device is the block device to mount there, or empty.
	Device string
	// Root is a folder with a system of its own for the host. If it is empty, the host sees
	// the machine's files.
	Root string
	// Again is true if the folder is not new.
	Again bool
	// Address is the host's address for /etc/hosts, Nameserver is for resolv.conf.
	Address, Nameserver string
}

// ownFolders are folders of the machine that a host sees. Its writes to them do not change the machine.
var ownFolders = []string{"/etc", "/opt", "/usr/libexec", "/usr/local", "/var/lib", "/var/log"}

// diskFolders are folders of a host that must be on a real file system, because overlayfs cannot be
// stacked as one likes.
var diskFolders = []string{"/var/lib/kedge", "/var/lib/kubelet"}

// runInit is the main function of a host's first process. It writes "ok" or an error to file descriptor
// 3, and then reaps orphans until it is killed.
func runInit(text string) {
	os.Unsetenv(initVariable)
	report := os.NewFile(3, "report")
	var spec initSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		err = spec.setUp()
	}
	if err != nil {
		fmt.Fprint(report, err)
		os.Exit(1)
	}
	fmt.Fprint(report, "ok")
	report.Close()

	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for range children {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
				break
			}
		}
	}
}

func (s initSpec) setUp() error {
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	mounts := []mount{
		// Mounts on the host must not propagate to the machine.
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
	}
	if s.Device != "" {
		mounts = append(mounts, mount{s.Device, s.Dir, "ext4", unix.MS_NOATIME, ""})
	}
	root := "/"
	if s.Root != "" {
		root = filepath.Join(s.Dir, "root")
		layers, err := s.overlay(s.Root, root)
		if err != nil {
			return err
		}
		mounts = append(mounts, layers, mount{"/dev", filepath.Join(root, "dev"), "", unix.MS_BIND | unix.MS_REC, ""})
	}
	mounts = append(mounts,
		mount{"proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		mount{"tmpfs", filepath.Join(root, "run"), "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	)
	// These come before anything is made in the folder.
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	mounts = nil
	// The host needs a sysfs of its own network namespace, with the machine's cgroups.
	cgroups := filepath.Join(s.Dir, "cgroups")
	mounts = append(mounts,
		mount{"/sys/fs/cgroup", cgroups, "", unix.MS_BIND | unix.MS_REC, ""},
		mount{"sysfs", filepath.Join(root, "sys"), "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		mount{cgroups, filepath.Join(root, "sys/fs/cgroup"), "", unix.MS_BIND | unix.MS_REC, ""},
	)
	if s.Root == "" {
		for _, folder := range ownFolders {
			layers, err := s.overlay(folder, folder)
			if err != nil {
				return err
			}
			mounts = append(mounts, layers)
		}
	}
	for _, folder := range diskFolders {
		source := filepath.Join(s.Dir, filepath.Base(folder))
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		mounts = append(mounts, mount{source, filepath.Join(root, folder), "", unix.MS_BIND, ""})
	}
	if err := os.MkdirAll(cgroups, 0o755); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := unix.Unmount(cgroups, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", cgroups, err)
	}
	if s.Root != "" {
		if err := pivot(root); err != nil {
			return err
		}
	}
	// Mounts within the host are shared, as on a real machine, because the kubelet needs that. This
	// comes last, or the unmount would be shared too.
	if err := (mount{"", "/", "", unix.MS_REC | unix.MS_SHARED, ""}).do(); err != nil {
		return err
	}
	if s.Again {
		return nil
	}
	return s.writeFiles()
}

// overlay makes the folders for a mount on which writes do not change a folder of the machine. It
// returns the mount.
func (s initSpec) overlay(folder, target string) (mount, error) {
	layers := filepath.Join(s.Dir, "layers", strings.ReplaceAll(folder[1:], "/", "-"))
	for _, layer := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(layers, layer), 0o755); err != nil {
			return mount{}, err
		}
	}
	return mount{"overlay", target, "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", folder, layers, layers)}, nil
}

// pivot makes a mount the root and detaches the old root: see pivot_root(2).
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root to %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	return os.Chdir("/")
}

func (s initSpec) writeFiles() error {
	// A kedge of the machine itself must not affect this host.
	if err := os.RemoveAll("/etc/kedge"); err != nil {
		return err
	}
	for _, folder := range []string{"/etc/cni", "/opt/cni", "/usr/libexec/kubernetes", "/var/lib/cni", "/var/log/pods", "/var/log/containers"} {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	for file, text := range map[string]string{
		"/etc/hostname":    s.Hostname + "\n",
		"/etc/hosts":       fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n", s.Address, s.Hostname),
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\n", s.Nameserver),
	} {
		// The file may be a link, for example to a file of systemd's.
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if m.flags&unix.MS_BIND != 0 || m.kind != "" {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s %s on %s (%s): %w", m.kind, m.source, m.target, m.data, err)
	}
	return nil
}
