package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// The cgroup drivers that containerd and the kubelet know.
const (
	DriverSystemd  = "systemd"
	DriverCgroupfs = "cgroupfs"
)

// Facts are what the kernel and the init system of this machine offer. They do
// not change while kedge runs.
type Facts struct {
	// CgroupVersion is 2 where /sys/fs/cgroup is the unified hierarchy, else 1.
	CgroupVersion int
	// CgroupHybrid is whether version 2 is mounted too, while the controllers are those of version 1.
	CgroupHybrid bool
	// CgroupElsewhere says of controllers that cannot be used why, if the kernel tells.
	CgroupElsewhere map[string]string
	// CgroupDriver is DriverSystemd or DriverCgroupfs.
	CgroupDriver string
	// Controllers are the cgroup controllers that can be used, sorted.
	Controllers []string
	// Systemd is whether systemd is the init system.
	Systemd bool
	// UserNamespace is whether this process is in a user namespace: what belongs to the whole machine, such as
	// settings of the kernel outside of networks, cannot be changed.
	UserNamespace bool
	// SysResource is whether this process has CAP_SYS_RESOURCE on the machine, without which
	// no process's OOM score can be lowered.
	SysResource bool
	// AppArmor is whether the kernel enforces it and its parser is there.
	AppArmor bool
	// NoAppArmorParser is whether the kernel enforces it and its parser, which loads profiles, is missing.
	NoAppArmorParser bool
	// SELinux is whether the kernel enforces it or could.
	SELinux bool
	// NoNftables is what of nftables kedge needs and the kernel does not have, or nil. kedge then uses
	// iptables in all places, or does without.
	NoNftables error
	// MemoryBytes is the machine's memory.
	MemoryBytes uint64
}

// Detect looks at this machine.
func Detect() (Facts, error) {
	p := probe{root: "/", nftables: nftables, lookPath: exec.LookPath}
	return p.detect()
}

// probe is where Detect looks: tests give it another root.
type probe struct {
	root     string
	nftables func() error
	lookPath func(string) (string, error)
}

func (p probe) path(elements ...string) string {
	return filepath.Join(append([]string{p.root}, elements...)...)
}

func (p probe) exists(elements ...string) bool {
	_, err := os.Stat(p.path(elements...))
	return err == nil
}

func (p probe) detect() (Facts, error) {
	facts := Facts{
		Systemd:    p.systemd(),
		SELinux:    p.exists("sys/fs/selinux/enforce"),
		NoNftables: p.nftables(),
	}
	var err error
	if err := p.cgroups(&facts); err != nil {
		return Facts{}, err
	}
	facts.UserNamespace = p.userNamespace()
	if facts.SysResource, err = p.sysResource(); err != nil {
		return Facts{}, err
	}
	facts.SysResource = facts.SysResource && !facts.UserNamespace
	if facts.MemoryBytes, err = p.memory(); err != nil {
		return Facts{}, err
	}
	if enabled, err := os.ReadFile(p.path("sys/module/apparmor/parameters/enabled")); err == nil {
		_, err := p.lookPath("apparmor_parser")
		// Only the machine's own root loads profiles.
		enforced := bytes.HasPrefix(enabled, []byte("Y")) && !facts.UserNamespace
		facts.AppArmor, facts.NoAppArmorParser = enforced && err == nil, enforced && err != nil
	}
	facts.CgroupDriver = p.driver(facts)
	return facts, nil
}

// systemd is sd_booted(3), and more: in a container the folder may be there
// though something else runs as the first process.
func (p probe) systemd() bool {
	comm, err := os.ReadFile(p.path("proc/1/comm"))
	return err == nil && strings.TrimSpace(string(comm)) == "systemd" && p.exists("run/systemd/system")
}

// driver is systemd where systemd owns the unified hierarchy: two writers of
// one hierarchy is what goes wrong, and on version 1 systemd's own driver is no
// longer kept up by runc. While pods run from an earlier start it stays what it
// was then, as their cgroups cannot be moved. The record is beside the pods'
// own state, which a reboot removes with them.
func (p probe) driver(facts Facts) string {
	driver := DriverCgroupfs
	if facts.Systemd && facts.CgroupVersion == 2 {
		driver = DriverSystemd
	}
	if pods, err := os.ReadDir(p.path(datadir.RunDir, "containerd/io.containerd.runtime.v2.task/k8s.io")); err == nil && len(pods) > 0 {
		old, err := os.ReadFile(p.path(driverRecord))
		if known := string(old); err == nil && (known == DriverSystemd || known == DriverCgroupfs) {
			return known
		}
	}
	return driver
}

// driverRecord is where preparing the host records the cgroup driver.
const driverRecord = datadir.RunDir + "/cgroup-driver"

// cgroups finds the version of the hierarchy that containers get, and its
// controllers. A hybrid host, with version 2 at /sys/fs/cgroup/unified, counts
// as version 1: its controllers are there.
func (p probe) cgroups(facts *Facts) error {
	mounts, err := os.ReadFile(p.path("proc/mounts"))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	unified, readOnly := false, false
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		options := strings.Split(fields[3], ",")
		ro := slices.Contains(options, "ro")
		switch target, kind := fields[1], fields[2]; {
		case kind == "cgroup2" && (target == "/sys/fs/cgroup" || strings.HasPrefix(target, "/sys/fs/cgroup/")):
			unified = true
			if target == "/sys/fs/cgroup" && facts.CgroupVersion == 0 {
				facts.CgroupVersion, readOnly = 2, ro
			}
		case kind == "cgroup" && strings.HasPrefix(target, "/sys/fs/cgroup/"):
			facts.CgroupVersion = 1
			has := slices.DeleteFunc(options, func(option string) bool { return !slices.Contains(cgroupControllers, option) })
			if ro {
				facts.cannotWrite(has)
			} else {
				facts.Controllers = append(facts.Controllers, has...)
			}
		}
	}
	switch facts.CgroupVersion {
	case 0:
		return fmt.Errorf("no cgroups are mounted at /sys/fs/cgroup, so no container can run: " +
			"mount them with `mount -t cgroup2 none /sys/fs/cgroup`")
	case 1:
		facts.CgroupHybrid = unified
	case 2:
		list, err := os.ReadFile(p.path("sys/fs/cgroup/cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read cgroup controllers: %w", err)
		}
		has := strings.Fields(string(list))
		facts.CgroupElsewhere = p.elsewhere(has)
		if readOnly {
			facts.cannotWrite(has)
		} else {
			facts.Controllers = has
		}
	}
	slices.Sort(facts.Controllers)
	facts.Controllers = slices.Compact(facts.Controllers)
	return nil
}

// cannotWrite says of controllers that they cannot be used, as in a container that is not privileged.
func (f *Facts) cannotWrite(controllers []string) {
	if f.CgroupElsewhere == nil {
		f.CgroupElsewhere = map[string]string{}
	}
	for _, c := range controllers {
		f.CgroupElsewhere[c] = "/sys/fs/cgroup is mounted read-only: start this container with --privileged, or mount it read-write"
	}
}

// elsewhere says why version 2 lacks controllers that the kernel has: cgroups(7), /proc/cgroups.
func (p probe) elsewhere(has []string) map[string]string {
	list, err := os.ReadFile(p.path("proc/cgroups"))
	if err != nil {
		return nil
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || strings.HasPrefix(fields[0], "#") || slices.Contains(has, fields[0]) {
			continue
		}
		switch name, hierarchy, enabled := fields[0], fields[1], fields[3]; {
		case enabled == "0":
			reasons[name] = "the kernel's command line turns it off (cgroup_disable)"
		case hierarchy != "0":
			reasons[name] = "a hierarchy of version 1 has it: unmount that, or boot with cgroup_no_v1=all"
		}
	}
	return reasons
}

// cgroupControllers are those of version 1 among its mount options.
var cgroupControllers = []string{
	"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "net_cls", "net_prio", "perf_event", "pids", "rdma", "misc",
}

// requiredControllers are those without which no pod can have limits; the
// kubelet does not start without the last two on version 1 (upstream:
// validateSystemRequirements in pkg/kubelet/cm/container_manager_linux.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/container_manager_linux.go validateSystemRequirements
var requiredControllers = map[int][]string{
	1: {"cpu", "memory", "pids", "cpuacct", "cpuset"},
	2: {"cpu", "memory", "pids"},
}

func (f Facts) missingControllers() []string {
	return slices.DeleteFunc(slices.Clone(requiredControllers[f.CgroupVersion]),
		func(c string) bool { return slices.Contains(f.Controllers, c) })
}

// userNamespace tells whether the user IDs of this process are not those of the machine: user_namespaces(7).
func (p probe) userNamespace() bool {
	text, err := os.ReadFile(p.path("proc/self/uid_map"))
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

func (p probe) sysResource() (bool, error) {
	status, err := os.ReadFile(p.path("proc/self/status"))
	if err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	value, ok := field(status, "CapEff:")
	if !ok {
		return false, fmt.Errorf("read capabilities: no CapEff in /proc/self/status")
	}
	mask, err := strconv.ParseUint(value, 16, 64)
	if err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return mask&(1<<unix.CAP_SYS_RESOURCE) != 0, nil
}

func (p probe) memory() (uint64, error) {
	meminfo, err := os.ReadFile(p.path("proc/meminfo"))
	if err != nil {
		return 0, fmt.Errorf("read memory size: %w", err)
	}
	value, _ := field(meminfo, "MemTotal:")
	kib, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory size: %w", err)
	}
	return kib * 1024, nil
}

// field returns the word after name at the start of a line.
func field(data []byte, name string) (string, bool) {
	for scanner := bufio.NewScanner(bytes.NewReader(data)); scanner.Scan(); {
		if words := strings.Fields(scanner.Text()); len(words) > 1 && words[0] == name {
			return words[1], true
		}
	}
	return "", false
}
