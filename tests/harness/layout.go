package harness

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// ownFolders are folders of the machine that a host sees. Its writes to them do not change the machine.
var ownFolders = []string{"/etc", "/opt", "/usr/libexec", "/usr/local", "/var/cache", "/var/lib", "/var/log"}

// diskFolders are folders of a host that must be on a real file system, because overlayfs cannot be
// stacked as one likes.
var diskFolders = []string{"/var/lib/kedge", "/var/lib/kubelet"}

// setup returns what the host's first process does. again is true if the host's folder is not new.
func (h *Host) setup(again bool) hosts.Setup {
	var mounts []hosts.Mount
	if h.device != "" {
		// It comes before anything is made in the folder.
		mounts = append(mounts, hosts.Mount{Source: h.device, Target: h.dir, Kind: "ext4", Flags: unix.MS_NOATIME})
	}
	root := "/"
	if h.root != "" {
		root = filepath.Join(h.dir, "root")
		mounts = append(mounts, h.overlay(h.root, root),
			hosts.Mount{Source: "/dev", Target: filepath.Join(root, "dev"), Flags: unix.MS_BIND | unix.MS_REC})
	}
	// The host needs a sysfs of its own network namespace, with the machine's cgroups.
	cgroups := filepath.Join(h.dir, "cgroups")
	mounts = append(mounts,
		hosts.Mount{Source: "proc", Target: filepath.Join(root, "proc"), Kind: "proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		hosts.Mount{Source: "tmpfs", Target: filepath.Join(root, "run"), Kind: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Data: "mode=755"},
		hosts.Mount{Source: "/sys/fs/cgroup", Target: cgroups, Flags: unix.MS_BIND | unix.MS_REC},
		hosts.Mount{Source: "sysfs", Target: filepath.Join(root, "sys"), Kind: "sysfs", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		hosts.Mount{Source: cgroups, Target: filepath.Join(root, "sys/fs/cgroup"), Flags: unix.MS_BIND | unix.MS_REC},
	)
	if h.root == "" {
		for _, folder := range ownFolders {
			mounts = append(mounts, h.overlay(folder, folder))
		}
	}
	for _, folder := range diskFolders {
		source := filepath.Join(h.dir, filepath.Base(folder))
		mounts = append(mounts, hosts.Mount{Source: source, Target: filepath.Join(root, folder), Flags: unix.MS_BIND, Folders: []string{source}})
	}
	setup := hosts.Setup{Hostname: h.Name, Mounts: mounts, Unmount: []string{cgroups}}
	if h.root != "" {
		setup.Root = root
	}
	if again {
		return setup
	}
	// A kedge of the machine itself must not affect this host.
	setup.Remove = []string{"/etc/kedge", "/etc/cni", "/opt/cni", "/usr/libexec/kubernetes", "/var/lib/cni", "/var/log/pods", "/var/log/containers"}
	setup.Files = map[string]string{
		"/etc/hostname":    h.Name + "\n",
		"/etc/hosts":       fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n", h.Address, h.Name),
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\n", h.network.lan.Subnet.Address(hosts.Gateway)),
	}
	return setup
}

// overlay returns a mount on which writes do not change a folder of the machine.
func (h *Host) overlay(folder, target string) hosts.Mount {
	return hosts.Overlay(folder, target, filepath.Join(h.dir, "layers", strings.ReplaceAll(folder[1:], "/", "-")))
}
