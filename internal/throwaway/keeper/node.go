package keeper

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// Paths on a node.
const (
	// Program is where a node has the executable of kedge.
	Program = "/kedge"
	// nodeEtc has the configuration, the kubeconfig and the tokens of a node.
	nodeEtc = "/etc/kedge"
	// notifySocket is where kedge says that it is ready: sd_notify(3).
	notifySocket = "/run/kedge-ready.sock"
)

// borrowed are files and folders of the machine that a node sees, and cannot change: what programs need to
// run, and what says whom they trust on the Internet. Nothing in them is secret.
var borrowed = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/localtime", "/etc/mke2fs.conf", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/services",
	// Not all of /etc/ssl and /etc/pki: these also have private keys of the machine.
	"/etc/pki/ca-trust/extracted", "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs", "/etc/ssl/cert.pem", "/etc/ssl/certs",
}

// layout is where a node is on the machine.
type layout struct {
	// root is the mount point of the node's root.
	root string
	// data is the folder with what stays of the node, or empty if everything is in memory.
	data string
	// helpers is the folder with the unpacked helpers, and executable is kedge.
	helpers, executable string
	// rootless says that the node is in a user namespace of an ordinary user.
	rootless bool
}

// base returns what every root begins with: a file system in memory, the programs of the machine, and
// nothing else of it.
func (l layout) base(hostname string) hosts.Setup {
	setup := hosts.Setup{
		Hostname: hostname,
		Root:     l.root,
		Mounts: []hosts.Mount{
			{Source: "tmpfs", Target: l.root, Kind: "tmpfs", Data: "mode=755"},
			{Source: "/dev", Target: l.at("dev"), Flags: unix.MS_BIND | unix.MS_REC},
			{Source: "proc", Target: l.at("proc"), Kind: "proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, Folders: []string{l.at("run"), l.at("root"), l.at("mnt")}},
			// Programs expect that every user can write here: the mode comes with the mount.
			{Source: "tmpfs", Target: l.at("tmp"), Kind: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NODEV, Data: "mode=1777"},
		},
		Links: map[string]string{},
	}
	for _, path := range borrowed {
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 && !strings.HasPrefix(path, "/etc/") {
			if target, err := os.Readlink(path); err == nil {
				setup.Links[path] = target
			}
			continue
		}
		if _, err := os.Stat(path); err == nil {
			setup.Mounts = append(setup.Mounts, l.borrow(path, path)...)
		}
	}
	setup.Mounts = append(setup.Mounts, l.borrow(l.executable, Program)...)
	return setup
}

// at returns the place on the machine of a path below the root.
func (l layout) at(path string) string { return filepath.Join(l.root, path) }

// borrow returns the mounts that show a file or a folder of the machine, which cannot be changed there.
func (l layout) borrow(from, to string) []hosts.Mount {
	mounts := hosts.ReadOnly(from, l.at(to))
	if os.Geteuid() != 0 {
		// Files of other users cannot be changed anyway, and the kernel does not let this user change
		// mounts of root.
		return mounts[:1]
	}
	return mounts
}

// node returns the setup of a node of a cluster.
func (l layout) node(c clusters.Cluster, number int) hosts.Setup {
	name, address := c.NodeName(number), c.Addresses().Address(number)
	setup := l.base(name)
	// Programs of the node install themselves below /usr, such as volume plugins of the kubelet.
	setup.Mounts = append(setup.Mounts, hosts.Overlay("/usr", l.at("usr"), l.at(".layers/usr")))
	if l.data != "" {
		for _, folder := range []string{"/var", nodeEtc} {
			source := filepath.Join(l.data, filepath.Base(folder))
			setup.Mounts = append(setup.Mounts, hosts.Mount{Source: source, Target: l.at(folder), Flags: unix.MS_BIND, Folders: []string{source}})
		}
	}
	setup.Mounts = append(setup.Mounts, l.borrow(l.helpers, datadir.Dir(config.Default().DataDir).Assets())...)
	// The node needs a sysfs of its own network namespace, with the machine's cgroups.
	cgroups, sys := l.at(".cgroups"), l.at("sys")
	setup.Mounts = append(setup.Mounts,
		hosts.Mount{Source: "/sys/fs/cgroup", Target: cgroups, Flags: unix.MS_BIND | unix.MS_REC},
		hosts.Mount{Source: "sysfs", Target: sys, Kind: "sysfs", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		hosts.Mount{Source: cgroups, Target: filepath.Join(sys, "fs/cgroup"), Flags: unix.MS_BIND | unix.MS_REC},
	)
	setup.Unmount = []string{cgroups}
	id := sha256.Sum256([]byte(c.Name + "/" + name))
	setup.Files = map[string]string{
		"/etc/hostname":    name + "\n",
		"/etc/machine-id":  hex.EncodeToString(id[:16]) + "\n",
		"/etc/hosts":       fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n", address, name),
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\n", c.Addresses().Address(hosts.Gateway)),
		nodeSettings:       settings(c, number, l.rootless),
	}
	if c.Config != "" {
		setup.Files[config.DefaultPath] = c.Config
	}
	return setup
}

// nodeCgroup returns the path of the cgroup of a node's pods, without a slash before it.
func nodeCgroup(c clusters.Cluster, number int) string {
	return c.Cgroup() + "/" + c.NodeName(number)
}
