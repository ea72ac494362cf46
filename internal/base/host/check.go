package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
)

// Result is how a check went.
type Result string

// A check that fails keeps kedge, or something every cluster needs, from
// working; a warning is a lack that costs something.
const (
	OK   Result = "ok"
	Warn Result = "warn"
	Fail Result = "fail"
)

// Check is one line of `kedge check-config`.
type Check struct {
	// Group is what it is about: cgroups, kernel, ports...
	Group, Name string
	Result      Result
	// Detail is what was found.
	Detail string `json:",omitempty"`
	// Cost is what does not work, or what to do, if the result is not OK.
	Cost string `json:",omitempty"`
}

// CheckConfig is what is checked besides the machine itself.
type CheckConfig struct {
	DataDir string
	// Ports are tried. Those that the process Kedge has are as they should be; 0 is for
	// none that runs.
	Ports []Port
	Kedge int
	// PodCIDRs and ServiceCIDRs are what a firewall must let through.
	PodCIDRs, ServiceCIDRs []netip.Prefix
	// ResolvConf is the file whose search domains pods get. ClusterDomain ends the names of
	// the cluster.
	ResolvConf, ClusterDomain string
}

// The memory and the disk space that a server with its node needs, in bytes. With a limit
// of 256 MiB a server and five pods work: see tests/e2e/small and tests/bench/README.md.
const (
	leastMemory = 256 << 20
	goodMemory  = 512 << 20
	leastDisk   = 1 << 30
	goodDisk    = 5 << 30
)

// CheckHost checks whether this machine can run kedge, and what it lacks.
func CheckHost(ctx context.Context, cfg CheckConfig) []Check {
	checks := checkPrivileges(os.Geteuid())
	facts, err := Detect()
	if err != nil {
		checks = append(checks, Check{Group: "host", Name: "detection", Result: Fail, Detail: err.Error()})
	} else {
		checks = append(checks, checkFacts(facts)...)
	}
	checks = append(checks, checkKernel(ctx, "/", facts.CgroupVersion, tries)...)
	checks = append(checks, checkStorage("/")...)
	checks = append(checks, checkPorts(ctx, "/", cfg.Ports, cfg.Kedge)...)
	firewall := Firewall{cfg.Ports, cfg.PodCIDRs, cfg.ServiceCIDRs}
	checks = append(checks, checkFirewalls("/", ruleset(ctx, datadir.HelpersLink), firewall)...)
	checks = append(checks, checkSearchDomains(ctx, cfg.ResolvConf, cfg.ClusterDomain)...)
	checks = append(checks, checkDisk(cfg.DataDir), checkClock(time.Now(), version.CommitDate(), ClockSynchronised()))
	return append(checks, checkLimits("/")...)
}

// Worst returns the worst result of checks.
func Worst(checks []Check) Result {
	worst := OK
	for _, c := range checks {
		if c.Result == Fail || c.Result == Warn && worst == OK {
			worst = c.Result
		}
	}
	return worst
}

func checkPrivileges(uid int) []Check {
	c := Check{Group: "host", Name: "root", Result: OK}
	if uid != 0 {
		c.Result, c.Cost = Fail, "kedge server and agent run as root: use sudo"
	}
	return []Check{c}
}

func checkFacts(f Facts) []Check {
	memory := Check{Group: "host", Name: "memory", Result: OK, Detail: fmt.Sprintf("%d MiB", f.MemoryBytes>>20)}
	switch {
	case f.MemoryBytes < leastMemory:
		memory.Result, memory.Cost = Fail, "a server needs 256 MiB. Run `kedge agent` here: it needs about 100 MiB, and its pods more"
	case f.MemoryBytes < goodMemory:
		memory.Detail += ": enough for a server and about five small pods"
	}
	checks := append(checkCgroups(f), memory, checkNftables(f.NoNftables), checkConfinement(f))
	for _, lack := range []struct {
		name string
		has  bool
		cost string
	}{
		{"CAP_SYS_RESOURCE", f.SysResource, "the kernel may kill important containers first when memory runs out"},
		{"systemd", f.Systemd, "systemd does not restart kedge if it ends"},
	} {
		c := Check{Group: "host", Name: lack.name, Result: OK}
		if !lack.has {
			c.Result, c.Detail, c.Cost = Warn, "not there", lack.cost
		}
		checks = append(checks, c)
	}
	return checks
}

func checkConfinement(f Facts) Check {
	c := Check{Group: "host", Name: "AppArmor or SELinux", Result: OK}
	switch {
	case f.AppArmor:
		c.Detail = "AppArmor"
	case f.SELinux:
		c.Detail = "SELinux, which confines containers if `selinux: true` is set"
	default:
		c.Result, c.Detail, c.Cost = Warn, "not there", "containers are confined by capabilities, namespaces and seccomp alone"
		if f.NoAppArmorParser {
			c.Detail = "the kernel has AppArmor, and the program apparmor_parser is missing"
			c.Cost += ", and pods with an AppArmor profile do not start. Install the package apparmor"
		}
	}
	return c
}

// checkCgroups tells version 1, hybrid, version 2, and version 2 without controllers apart.
func checkCgroups(f Facts) []Check {
	version := Check{Group: "cgroups", Name: "version", Result: OK, Detail: strconv.Itoa(f.CgroupVersion)}
	if f.CgroupVersion == 1 {
		version.Result, version.Cost = Warn, "no memory QoS, no swap for pods; upstream will drop version 1"
		if f.CgroupHybrid {
			version.Detail = "hybrid: version 2 without controllers beside version 1, which pods use"
			version.Cost += ". Boot with systemd.unified_cgroup_hierarchy=1 for version 2"
		}
	}
	controllers := Check{Group: "cgroups", Name: "controllers", Result: OK, Detail: strings.Join(f.Controllers, " ")}
	if missing := f.missingControllers(); len(missing) > 0 {
		controllers.Result, controllers.Detail = Fail, "missing: "+strings.Join(missing, " ")
		controllers.Cost = f.controllerHint(missing)
	}
	return []Check{version, controllers, {Group: "cgroups", Name: "driver", Result: OK, Detail: f.CgroupDriver}}
}

func checkNftables(lack error) Check {
	c := Check{Group: "host", Name: "nftables", Result: OK}
	if lack != nil {
		c.Result, c.Detail = Warn, lack.Error()
		c.Cost = "Services need --kube-proxy-arg proxy-mode=iptables; NetworkPolicies are not enforced; kedge run and kedge cluster do not work"
	}
	return c
}

// checkDisk looks at the file system that the data directory is, or will be, on.
func checkDisk(dir string) Check {
	c := Check{Group: "host", Name: "disk", Result: OK}
	for {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		if errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			c.Result, c.Detail = Fail, err.Error()
			return c
		}
		free := stat.Bavail * uint64(stat.Bsize)
		c.Detail = fmt.Sprintf("%d MiB free on %s", free>>20, dir)
		switch {
		case stat.Flags&unix.ST_RDONLY != 0:
			c.Result, c.Detail, c.Cost = Fail, dir+" is read-only", "choose another folder with --data-dir"
		case free < leastDisk:
			c.Result, c.Cost = Fail, "images do not fit, and the kubelet evicts pods: free space, or choose another folder with --data-dir"
		case free < goodDisk:
			c.Result, c.Cost = Warn, "the kubelet may soon evict pods"
		case stat.Files > 0 && stat.Ffree*20 < stat.Files:
			c.Result, c.Detail, c.Cost = Warn, "few inodes are left on "+dir, "the kubelet evicts pods when less than 5 % are free"
		}
		return c
	}
}

func checkClock(now, built time.Time, synchronised bool) Check {
	c := Check{Group: "host", Name: "clock", Result: OK, Detail: now.UTC().Format(time.RFC3339)}
	switch {
	case now.Before(built):
		c.Result = Warn
		c.Cost = "the clock is wrong: it is earlier than the build of this kedge. kedge waits a minute for it, then checks certificates by the last time it knew. Set the clock"
	case !synchronised:
		c.Result = Warn
		c.Cost = "the clock is not synchronised: nodes whose clocks differ refuse each other's certificates and tokens. Install a time service such as chrony"
	}
	return c
}

// ClockSynchronised asks the kernel whether a time daemon keeps its clock right: the daemon clears
// STA_UNSYNC, and setting the clock by hand or booting sets it (kernel/time/ntp.c).
func ClockSynchronised() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}

// checkLimits finds limits that are hit only when a node is busy, and that a start cannot raise.
func checkLimits(root string) []Check {
	var checks []Check
	for _, limit := range inotifyLimits {
		file := filepath.Join(root, "proc/sys", limit.name)
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		value, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			continue
		}
		c := Check{Group: "limits", Name: strings.ReplaceAll(limit.name, "/", "."), Result: OK, Detail: strconv.Itoa(value)}
		if value < limit.least {
			// In a container /proc/sys may be read-only.
			if f, err := os.OpenFile(file, os.O_WRONLY, 0); err == nil {
				f.Close()
				c.Detail = fmt.Sprintf("%d: kedge raises it to %d", value, limit.least)
			} else if value < limit.enough {
				c.Result = Warn
				c.Cost = fmt.Sprintf("log followers and file watchers fail with `%s` on a busy node: run `sysctl -w %s=%d` on the host", limit.fault, c.Name, limit.least)
			}
		}
		checks = append(checks, c)
	}
	return checks
}
