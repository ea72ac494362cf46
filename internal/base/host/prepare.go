package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Config is what preparing the host depends on.
type Config struct {
	Facts Facts
	// IPv6 is whether pods have IPv6 addresses.
	IPv6 bool
}

// New returns the component that prepares the host: it loads kernel modules,
// sets what must be set in /proc/sys, makes cgroups usable in a container, and
// says once what it had to do without. What it changes stays after kedge has
// ended, as running pods need it.
func New(cfg Config) component.Component {
	p := preparer{Config: cfg, root: "/", loadModule: modprobe, makeShared: makeRootShared}
	return component.Step("host", func(ctx context.Context) error {
		notes, err := p.prepare(ctx)
		log := logrus.WithField("component", "host")
		for _, note := range notes {
			log.Info(note)
		}
		return err
	})
}

// preparer is New's, with what tests replace.
type preparer struct {
	Config
	root       string
	loadModule func(ctx context.Context, name string) error
	makeShared func() error
}

func (p preparer) path(name string) string { return filepath.Join(p.root, name) }

// prepare returns what a user should know, in words.
func (p preparer) prepare(ctx context.Context) (notes []string, err error) {
	if err := p.Facts.checkControllers(); err != nil {
		return nil, err
	}
	if err := p.recordDriver(); err != nil {
		return nil, err
	}
	if p.Facts.CgroupVersion == 1 {
		notes = append(notes, "cgroups are version 1: pods run, without memory QoS and swap; version 2 comes with systemd.unified_cgroup_hierarchy=1 on the kernel's command line")
	}
	if p.Facts.NoNftables != nil {
		notes = append(notes, fmt.Sprintf("nftables cannot be used, so the network of pods uses iptables: %v", p.Facts.NoNftables))
	}
	if !p.Facts.SysResource {
		notes = append(notes, "no CAP_SYS_RESOURCE here: containers get no OOM score below kedge's own")
	}
	if p.Facts.CgroupVersion == 2 && !p.Facts.Systemd {
		moved, err := delegate(p.path("sys/fs/cgroup"))
		if err != nil {
			return notes, err
		}
		if moved {
			notes = append(notes, "moved the processes of this container to the cgroup /init, so that pods can have limits")
		}
	}
	for _, m := range modules {
		if m.present(p.root) || m.rootOnly && p.Facts.UserNamespace {
			continue
		}
		if err := p.loadModule(ctx, m.name); err != nil && !m.present(p.root) {
			notes = append(notes, fmt.Sprintf("no kernel module %s: %s", m.name, m.cost))
		}
	}
	changed, err := p.sysctls()
	if err != nil {
		return notes, err
	}
	if len(changed) > 0 {
		notes = append(notes, "set "+strings.Join(changed, ", "))
	}
	shared, err := p.rootShared()
	if err != nil {
		return notes, err
	}
	if !shared {
		// systemd does this at boot; without it pods and volume drivers that ask
		// for mount propagation are refused.
		if err := p.makeShared(); err != nil {
			notes = append(notes, fmt.Sprintf("cannot make the root mount shared: volumes with mount propagation will not start: %v", err))
		} else {
			notes = append(notes, "made the root mount shared, for volumes with mount propagation")
		}
	}
	return notes, nil
}

// recordDriver is for the next Detect.
func (p preparer) recordDriver() error {
	record := p.path(driverRecord)
	if err := datadir.MakePassable(filepath.Dir(record)); err != nil {
		return fmt.Errorf("record cgroup driver: %w", err)
	}
	if err := os.WriteFile(record, []byte(p.Facts.CgroupDriver), 0o600); err != nil {
		return fmt.Errorf("record cgroup driver: %w", err)
	}
	return nil
}

// checkControllers returns an error if pods cannot run for lack of cgroup controllers.
func (f Facts) checkControllers() error {
	missing := f.missingControllers()
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("cgroups of version %d do not offer the controllers %s: %s", f.CgroupVersion, strings.Join(missing, ", "), f.controllerHint(missing))
}

// controllerHint says why controllers are missing, and what to do.
func (f Facts) controllerHint(missing []string) string {
	var reasons []string
	of := map[string][]string{} // the controllers of each reason
	for _, c := range missing {
		reason := f.CgroupElsewhere[c]
		if reason != "" && of[reason] == nil {
			reasons = append(reasons, reason)
		}
		of[reason] = append(of[reason], c)
	}
	if len(reasons) > 0 {
		for i, reason := range reasons {
			reasons[i] = strings.Join(of[reason], ", ") + ": " + reason
		}
		return strings.Join(reasons, "; ")
	}
	if f.CgroupVersion == 2 && len(f.Controllers) == 0 {
		return "this machine has cgroups of version 2 without any controllers: delegate them to this container, or enable them in the kernel"
	}
	for _, c := range missing {
		if c == "memory" {
			return "add `cgroup_memory=1 cgroup_enable=memory` to the kernel's command line " +
				"(on a Raspberry Pi: /boot/firmware/cmdline.txt) and reboot"
		}
	}
	return "enable them in the kernel or, in a container, delegate them to it"
}

// module is a kernel module, and how to know that the kernel already has what
// it brings, loaded or built in.
type module struct {
	name  string
	proof string // a file that exists then
	line  string // and, if not empty, has this line's end
	cost  string // of doing without
	// rootOnly is whether only root of the machine can use it.
	rootOnly bool
}

var modules = []module{
	{name: "br_netfilter", proof: "proc/sys/net/bridge/bridge-nf-call-iptables",
		cost: "a pod does not reach a Service whose endpoint is on the same node"},
	{name: "overlay", proof: "proc/filesystems", line: "overlay",
		cost: "images and containers are copied instead of stacked, which takes disk and time"},
	{name: "nf_conntrack", proof: "proc/sys/net/netfilter/nf_conntrack_max",
		cost: "Services do not work"},
	{name: "vxlan", proof: "sys/module/vxlan",
		cost: "pods of different nodes do not reach each other over VXLAN; flannel-backend host-gw needs none"},
	{name: "loop", proof: "proc/devices", line: "loop",
		cost: "claims wait unless their StorageClass is local-unlimited, or their disk has project quotas", rootOnly: true},
}

func (m module) present(root string) bool {
	data, err := os.ReadFile(filepath.Join(root, m.proof))
	if m.line == "" {
		return err == nil || errors.Is(err, unix.EISDIR)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(strings.TrimSpace(line), m.line) {
			return true
		}
	}
	return false
}

func modprobe(ctx context.Context, name string) error {
	if out, err := exec.CommandContext(ctx, "modprobe", "--", name).CombinedOutput(); err != nil {
		return fmt.Errorf("load module %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// inotifyLimits are per user, so for all that root runs. The kernel's default of
// 128 instances is soon used up: kedge needs 24, a pod one for each follower of
// its logs.
var inotifyLimits = []struct {
	name string
	// least is what a start raises the limit to. A node is not busy enough to hit enough.
	least, enough int
	// fault is what programs say at the limit.
	fault string
}{
	{"fs/inotify/max_user_instances", 8192, 512, "too many open files"},
	{"fs/inotify/max_user_watches", 65536, 65536, "no space left on device"},
}

// sysctls sets what Services and pod networking need and is not set yet. What
// else upstream needs, its kubelet and kube-proxy set themselves.
func (p preparer) sysctls() (changed []string, err error) {
	set := func(name, value string) error {
		done, err := p.sysctl(name, value)
		if done {
			changed = append(changed, strings.ReplaceAll(name, "/", ".")+"="+value)
		}
		return err
	}
	for _, name := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if err := set(name, "1"); err != nil {
			return changed, err
		}
	}
	if err := set("net/ipv4/ip_forward", "1"); err != nil {
		return changed, err
	}
	for _, limit := range inotifyLimits {
		old, err := os.ReadFile(p.path(filepath.Join("proc/sys", limit.name)))
		if err != nil {
			continue // a kernel without inotify
		}
		if value, err := strconv.Atoi(strings.TrimSpace(string(old))); err == nil && value < limit.least {
			// In a container the limits may be the host's: check-config says
			// what that costs.
			_ = set(limit.name, strconv.Itoa(limit.least))
		}
	}
	if !p.IPv6 {
		return changed, nil
	}
	// A kernel that forwards ignores router advertisements unless accept_ra is
	// 2: a host that has its IPv6 default route from them would lose it.
	interfaces, err := filepath.Glob(p.path("proc/sys/net/ipv6/conf/*/accept_ra"))
	if err != nil {
		return changed, fmt.Errorf("list IPv6 interfaces: %w", err)
	}
	for _, file := range interfaces {
		if old, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(old)) == "1" {
			name, _ := filepath.Rel(p.path("proc/sys"), file)
			if err := set(name, "2"); err != nil {
				return changed, err
			}
		}
	}
	return changed, set("net/ipv6/conf/all/forwarding", "1")
}

// sysctl sets one value. One that the kernel does not have is left: what it
// costs was said when its module could not be loaded.
func (p preparer) sysctl(name, value string) (changed bool, err error) {
	file := p.path(filepath.Join("proc/sys", name))
	old, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read sysctl %s: %w", name, err)
	}
	if strings.TrimSpace(string(old)) == value {
		return false, nil
	}
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		return false, fmt.Errorf("set sysctl %s to %s, which pods need (in a container, let its host set it): %w", name, value, err)
	}
	return true, nil
}

// rootShared is whether mounts below / propagate: proc_pid_mountinfo(5).
func (p preparer) rootShared() (bool, error) {
	mountinfo, err := os.ReadFile(p.path("proc/self/mountinfo"))
	if err != nil {
		return false, fmt.Errorf("read mounts: %w", err)
	}
	shared := false
	for line := range strings.Lines(string(mountinfo)) {
		before, _, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) >= 6 && fields[4] == "/" {
			shared = strings.Contains(strings.Join(fields[6:], " "), "shared:")
		}
	}
	return shared, nil
}

func makeRootShared() error {
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}
