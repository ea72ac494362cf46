package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree makes a file system of its files, by path, below a temporary folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	v2Mounts     = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
	hybridMounts = `tmpfs /sys/fs/cgroup tmpfs ro 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
`
	allCaps   = "Name:\tkedge\nCapEff:\t000001ffffffffff\n"
	fewCaps   = "Name:\tkedge\nCapEff:\t000001fffeffffff\n"
	shimState = "run/kedge/containerd/io.containerd.runtime.v2.task/k8s.io/"
)

func TestDetect(t *testing.T) {
	v2 := map[string]string{
		"proc/mounts": v2Mounts, "proc/self/status": allCaps, "proc/meminfo": "MemTotal:  1048576 kB\n",
		"proc/1/comm": "init\n", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
	}
	with := func(more ...string) map[string]string {
		files := map[string]string{}
		for name, content := range v2 {
			files[name] = content
		}
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for name, test := range map[string]struct {
		files   map[string]string
		version int
		driver  string
		err     string
		check   func(Facts) bool
	}{
		"version 2":                        {files: v2, version: 2, driver: DriverCgroupfs, check: func(f Facts) bool { return f.SysResource && f.MemoryBytes == 1<<30 && !f.Systemd }},
		"version 2 under systemd":          {files: with("proc/1/comm", "systemd\n", "run/systemd/system/", ""), version: 2, driver: DriverSystemd},
		"systemd's folder without systemd": {files: with("run/systemd/system/", ""), version: 2, driver: DriverCgroupfs},
		"hybrid": {files: with("proc/mounts", hybridMounts), version: 1, driver: DriverCgroupfs, check: func(f Facts) bool {
			return f.CgroupHybrid && slices.Equal(f.Controllers, []string{"cpu", "cpuacct", "cpuset", "memory", "pids"})
		}},
		"version 1": {files: with("proc/mounts", strings.ReplaceAll(hybridMounts, "cgroup2", "none")), version: 1, driver: DriverCgroupfs, check: func(f Facts) bool { return !f.CgroupHybrid }},
		"version 2 whose controllers are elsewhere": {files: with("sys/fs/cgroup/cgroup.controllers", "cpu\n",
			"proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t9\t1\nmemory\t0\t9\t0\npids\t4\t9\t1\nio\t0\t9\t1\n"),
			version: 2, driver: DriverCgroupfs, check: func(f Facts) bool {
				hint := f.controllerHint(f.missingControllers())
				return strings.Contains(hint, "memory: the kernel's command line") && strings.Contains(hint, "pids: a hierarchy of version 1") && len(f.CgroupElsewhere) == 2
			}},
		"version 2, read-only": {files: with("proc/mounts", strings.ReplaceAll(v2Mounts, "rw,nosuid", "ro,nosuid")), version: 2, driver: DriverCgroupfs, check: func(f Facts) bool {
			return strings.HasPrefix(f.controllerHint(f.missingControllers()), "cpu, memory, pids: /sys/fs/cgroup is mounted read-only")
		}},
		"hybrid, read-only": {files: with("proc/mounts", strings.ReplaceAll(hybridMounts, "cgroup rw", "cgroup ro")), version: 1, driver: DriverCgroupfs, check: func(f Facts) bool {
			return strings.HasPrefix(f.controllerHint(f.missingControllers()), "cpu, memory, pids, cpuacct, cpuset: /sys/fs/cgroup is mounted read-only")
		}},
		"hybrid under systemd": {files: with("proc/mounts", hybridMounts, "proc/1/comm", "systemd\n", "run/systemd/system/", ""), version: 1, driver: DriverCgroupfs},
		"no cgroups":           {files: with("proc/mounts", "proc /proc proc rw 0 0\n"), err: "no cgroups are mounted"},
		"a user namespace": {files: with("proc/self/uid_map", "         0       1000          1\n         1     100000      65536\n", "sys/module/apparmor/parameters/enabled", "Y\n"), version: 2, driver: DriverCgroupfs,
			check: func(f Facts) bool { return f.UserNamespace && !f.SysResource && !f.AppArmor }},
		"the machine's own users": {files: with("proc/self/uid_map", "         0          0 4294967295\n"), version: 2, driver: DriverCgroupfs,
			check: func(f Facts) bool { return !f.UserNamespace && f.SysResource }},
		"no CAP_SYS_RESOURCE":                 {files: with("proc/self/status", fewCaps), version: 2, driver: DriverCgroupfs, check: func(f Facts) bool { return !f.SysResource }},
		"systemd came while pods run":         {files: with("proc/1/comm", "systemd\n", "run/systemd/system/", "", "run/kedge/cgroup-driver", DriverCgroupfs, shimState+"pod/", ""), version: 2, driver: DriverCgroupfs},
		"systemd came after the pods":         {files: with("proc/1/comm", "systemd\n", "run/systemd/system/", "", "run/kedge/cgroup-driver", DriverCgroupfs, shimState, ""), version: 2, driver: DriverSystemd},
		"AppArmor":                            {files: with("sys/module/apparmor/parameters/enabled", "Y\n"), version: 2, driver: DriverCgroupfs, check: func(f Facts) bool { return f.AppArmor && !f.NoAppArmorParser && !f.SELinux }},
		"SELinux":                             {files: with("sys/fs/selinux/enforce", "1"), version: 2, driver: DriverCgroupfs, check: func(f Facts) bool { return f.SELinux && !f.AppArmor }},
		"a Raspberry Pi with memory disabled": {files: with("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids"), version: 2, driver: DriverCgroupfs, check: func(f Facts) bool { return slices.Equal(f.missingControllers(), []string{"memory"}) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := probe{root: tree(t, test.files), nftables: func() error { return nil }, lookPath: func(string) (string, error) { return "", nil }}
			got, err := p.detect()
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.CgroupVersion != test.version || got.CgroupDriver != test.driver || test.check != nil && !test.check(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestDetectThisHost(t *testing.T) {
	facts, err := Detect()
	if err != nil {
		t.Skip(err)
	}
	if facts.MemoryBytes == 0 || len(facts.Controllers) == 0 {
		t.Errorf("got %+v", facts)
	}
}

func TestAppArmorNeedsItsParser(t *testing.T) {
	p := probe{root: tree(t, map[string]string{
		"proc/mounts": v2Mounts, "proc/self/status": allCaps, "proc/meminfo": "MemTotal: 1 kB",
		"sys/fs/cgroup/cgroup.controllers": "cpu", "sys/module/apparmor/parameters/enabled": "Y",
	}), nftables: func() error { return nil }, lookPath: func(string) (string, error) { return "", errors.New("not found") }}
	facts, err := p.detect()
	if err != nil || facts.AppArmor || !facts.NoAppArmorParser {
		t.Errorf("got %+v, %v", facts, err)
	}
}
