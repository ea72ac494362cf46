package host

import (
	"bytes"
	"compress/gzip"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func byName(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %s in %+v", name, checks)
	return Check{}
}

func TestCheckFacts(t *testing.T) {
	facts := good()
	facts.MemoryBytes, facts.AppArmor = 4<<30, true
	if checks := checkFacts(facts); Worst(checks) != OK {
		t.Errorf("a good host gets %+v", checks)
	}
	facts.MemoryBytes = 256 << 20
	if c := byName(t, checkFacts(facts), "memory"); c.Result != OK || !strings.Contains(c.Detail, "enough for a server") {
		t.Errorf("256 MiB: %+v", c)
	}
	facts.Controllers, facts.MemoryBytes, facts.NoNftables = []string{"cpu", "pids"}, 128<<20, errors.New("no family inet")
	checks := checkFacts(facts)
	for name, want := range map[string]Result{"controllers": Fail, "memory": Fail, "nftables": Warn, "systemd": OK} {
		if c := byName(t, checks, name); c.Result != want || c.Result != OK && c.Cost == "" {
			t.Errorf("%+v, want %s and its cost", c, want)
		}
	}
	if Worst(checks) != Fail {
		t.Errorf("worst is %s", Worst(checks))
	}
	for _, test := range []struct {
		facts  Facts
		result Result
		say    string
	}{
		{Facts{AppArmor: true}, OK, ""},
		{Facts{SELinux: true}, OK, "if `selinux: true` is set"},
		{Facts{}, Warn, "seccomp alone"},
		{Facts{NoAppArmorParser: true}, Warn, "Install the package apparmor"},
	} {
		if c := checkConfinement(test.facts); c.Result != test.result || !strings.Contains(c.Detail+c.Cost, test.say) {
			t.Errorf("%+v gets %+v, want %s and %q", test.facts, c, test.result, test.say)
		}
	}
}

func TestCheckKernel(t *testing.T) {
	var config bytes.Buffer
	w := gzip.NewWriter(&config)
	_, _ = w.Write([]byte("CONFIG_NAMESPACES=y\nCONFIG_VXLAN=m\n# CONFIG_VETH is not set\n"))
	_ = w.Close()
	checks := checkKernel(t.Context(), tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "proc/config.gz": config.String()}), 2, nil)
	for name, want := range map[string]Result{"NAMESPACES": OK, "VXLAN": OK, "VETH": Fail, "WIREGUARD": Warn} {
		if c := byName(t, checks, name); c.Result != want || c.Result != OK && c.Cost == "" {
			t.Errorf("%+v, want %s and its cost", c, want)
		}
	}
	checks = checkKernel(t.Context(), tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n"}), 2, nil)
	if len(checks) != 1 || checks[0].Result != Warn || !strings.Contains(checks[0].Detail, "6.1.0") {
		t.Errorf("without a configuration of the kernel: got %+v, want one warning", checks)
	}
	checks = checkKernel(t.Context(), tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "boot/config-6.1.0": "CONFIG_VETH=y\n"}), 2, nil)
	if c := byName(t, checks, "VETH"); c.Result != OK {
		t.Errorf("with a configuration in /boot: got %+v, want OK", c)
	}
	for _, file := range configFiles[1:] {
		file = strings.ReplaceAll(file, "%s", "6.1.0")
		checks = checkKernel(t.Context(), tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", file: "CONFIG_VETH=y\n"}), 2, nil)
		if c := byName(t, checks, "configuration"); c.Result != OK || c.Detail != "/"+file {
			t.Errorf("with %s: got %+v", file, c)
		}
	}
}

// TestCheckCgroups has each kind of cgroups, with a kernel that has no cpuset.
func TestCheckCgroups(t *testing.T) {
	kernel := tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "boot/config-6.1.0": "CONFIG_MEMCG=y\n"})
	v1 := []string{"cpu", "cpuacct", "cpuset", "memory", "pids"}
	for name, test := range map[string]struct {
		facts                        Facts
		version, controllers, cpuset Result
		detail, cost                 string
	}{
		"version 1":      {Facts{CgroupVersion: 1, Controllers: v1}, Warn, OK, Fail, "1", "no swap"},
		"hybrid":         {Facts{CgroupVersion: 1, CgroupHybrid: true, Controllers: v1}, Warn, OK, Fail, "hybrid", "unified_cgroup_hierarchy=1"},
		"version 2":      {Facts{CgroupVersion: 2, Controllers: v1}, OK, OK, Warn, "2", ""},
		"without cpuset": {Facts{CgroupVersion: 2, Controllers: []string{"cpu", "memory", "pids"}}, OK, OK, Warn, "2", ""},
		"no controllers": {Facts{CgroupVersion: 2}, OK, Fail, Warn, "2", "without any controllers"},
		"v1 has them":    {Facts{CgroupVersion: 2, CgroupElsewhere: map[string]string{"memory": "elsewhere"}}, OK, Fail, Warn, "2", "memory: elsewhere"},
		"memory is off":  {Facts{CgroupVersion: 2, Controllers: []string{"cpu", "pids"}}, OK, Fail, Warn, "2", "cgroup_enable=memory"},
	} {
		checks := checkCgroups(test.facts)
		version, controllers := byName(t, checks, "version"), byName(t, checks, "controllers")
		cpuset := byName(t, checkKernel(t.Context(), kernel, test.facts.CgroupVersion, nil), "CPUSETS")
		if version.Result != test.version || controllers.Result != test.controllers || cpuset.Result != test.cpuset ||
			!strings.HasPrefix(version.Detail, test.detail) || !strings.Contains(version.Cost+controllers.Cost, test.cost) {
			t.Errorf("%s: got %+v, %+v and %+v", name, version, controllers, cpuset)
		}
	}
}

// TestCheckLimits has limits of a stock Debian, which a start raises, and those of a container, which it cannot raise.
func TestCheckLimits(t *testing.T) {
	root := tree(t, map[string]string{"proc/sys/fs/inotify/max_user_instances": "128\n", "proc/sys/fs/inotify/max_user_watches": "65536\n"})
	checks := checkLimits(root)
	if c := byName(t, checks, "fs.inotify.max_user_instances"); c.Result != OK || c.Detail != "128: kedge raises it to 8192" {
		t.Errorf("got %+v", c)
	}
	if c := byName(t, checks, "fs.inotify.max_user_watches"); c.Result != OK || c.Detail != "65536" {
		t.Errorf("got %+v", c)
	}
	sys := filepath.Join(root, "proc/sys")
	if err := errors.Join(unix.Mount(sys, sys, "", unix.MS_BIND, ""), unix.Mount("", sys, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(sys, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if c := byName(t, checkLimits(root), "fs.inotify.max_user_instances"); c.Result != Warn || !strings.Contains(c.Cost, "sysctl -w fs.inotify.max_user_instances=8192") {
		t.Errorf("read-only: got %+v", c)
	}
}

func TestCheckStorage(t *testing.T) {
	checks := checkStorage(tree(t, map[string]string{"dev/loop-control": "", "sbin/mkfs.ext4": ""}))
	if Worst(checks) != OK {
		t.Errorf("a good host gets %+v", checks)
	}
	for _, c := range checkStorage(tree(t, nil)) {
		if c.Result != Warn || !strings.Contains(c.Cost, "local-unlimited") {
			t.Errorf("%+v, want a warning and what to do", c)
		}
	}
}

func TestCheckDiskLooksAtTheParent(t *testing.T) {
	if c := checkDisk(t.TempDir() + "/not/there/yet"); !strings.Contains(c.Detail, "free on") && c.Cost == "" {
		t.Errorf("got %+v", c)
	}
}

func TestCheckClock(t *testing.T) {
	built := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		now          time.Time
		synchronised bool
		want         Result
	}{
		{built.Add(time.Hour), true, OK},
		{built.Add(time.Hour), false, Warn},
		{time.Unix(0, 0), true, Warn},
	} {
		if c := checkClock(test.now, built, test.synchronised); c.Result != test.want {
			t.Errorf("got %+v, want %s", c, test.want)
		}
	}
}

func TestCheckHostRuns(t *testing.T) {
	checks := CheckHost(t.Context(), CheckConfig{DataDir: t.TempDir()})
	for _, c := range checks {
		if c.Result != OK && c.Detail == "" && c.Cost == "" {
			t.Errorf("%+v says nothing", c)
		}
		t.Logf("%-8s %-30s %-5s %s %s", c.Group, c.Name, c.Result, c.Detail, c.Cost)
	}
}
