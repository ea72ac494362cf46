package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func good() Facts {
	return Facts{CgroupVersion: 2, CgroupDriver: DriverSystemd, Systemd: true, SysResource: true, Controllers: []string{"cpu", "cpuset", "memory", "pids"}}
}

func prepared() map[string]string {
	return map[string]string{
		"proc/sys/net/bridge/bridge-nf-call-iptables":  "1\n",
		"proc/sys/net/bridge/bridge-nf-call-ip6tables": "1\n",
		"proc/sys/fs/inotify/max_user_instances":       "9000\n",
		"proc/sys/net/ipv4/ip_forward":                 "1\n",
		"proc/sys/net/ipv6/conf/all/forwarding":        "0\n",
		"proc/sys/net/ipv6/conf/eth0/accept_ra":        "1\n",
		"proc/sys/net/ipv6/conf/eth1/accept_ra":        "0\n",
		"proc/sys/net/netfilter/nf_conntrack_max":      "1\n",
		"proc/devices":        "Block devices:\n  7 loop\n254 vda\n",
		"proc/filesystems":    "nodev\ttmpfs\nnodev\toverlay\n",
		"sys/module/vxlan/":   "",
		"proc/self/mountinfo": "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n30 22 0:1 / /proc rw - proc proc rw\n",
	}
}

func TestPrepare(t *testing.T) {
	t.Run("a host that is ready is left alone", func(t *testing.T) {
		p := preparer{Config: Config{Facts: good()}, root: tree(t, prepared()),
			loadModule: func(_ context.Context, name string) error { t.Errorf("loads %s", name); return nil },
			makeShared: func() error { t.Error("changes mounts"); return nil }}
		notes, err := p.prepare(t.Context())
		if err != nil || len(notes) != 0 {
			t.Errorf("got %q, %v", notes, err)
		}
		if driver := read(t, p.root, driverRecord); driver != DriverSystemd {
			t.Errorf("recorded driver %s", driver)
		}
	})
	t.Run("modules and settings that are missing", func(t *testing.T) {
		files := prepared()
		files["proc/sys/net/ipv4/ip_forward"] = "0\n"
		files["proc/sys/fs/inotify/max_user_instances"] = "128\n"
		files["proc/self/mountinfo"] = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
		delete(files, "proc/sys/net/bridge/bridge-nf-call-iptables")
		delete(files, "proc/sys/net/bridge/bridge-nf-call-ip6tables")
		delete(files, "sys/module/vxlan/")
		files["proc/devices"] = "Block devices:\n254 vda\n"
		root := tree(t, files)
		shared := false
		var loaded []string
		p := preparer{Config: Config{Facts: good(), IPv6: true}, root: root,
			loadModule: func(_ context.Context, name string) error {
				loaded = append(loaded, name)
				if name == "vxlan" {
					return errors.New("modprobe: not found")
				}
				dir := filepath.Join(root, "proc/sys/net/bridge")
				return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/bridge-nf-call-iptables", []byte("0"), 0o644))
			},
			makeShared: func() error { shared = true; return nil }}
		notes, err := p.prepare(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"proc/sys/fs/inotify/max_user_instances":      "8192",
			"proc/sys/net/ipv4/ip_forward":                "1",
			"proc/sys/net/bridge/bridge-nf-call-iptables": "1",
			"proc/sys/net/ipv6/conf/all/forwarding":       "1",
			"proc/sys/net/ipv6/conf/eth0/accept_ra":       "2",
			"proc/sys/net/ipv6/conf/eth1/accept_ra":       "0",
		} {
			if got := read(t, root, path); got != want {
				t.Errorf("%s is %s, want %s", path, got, want)
			}
		}
		said := strings.Join(notes, "\n")
		if !shared || !strings.Contains(said, "no kernel module vxlan") || strings.Contains(said, "br_netfilter") || !strings.Contains(said, "net.ipv4.ip_forward=1") {
			t.Errorf("shared %v, said:\n%s", shared, said)
		}
		if want := []string{"br_netfilter", "vxlan", "loop"}; !slices.Equal(loaded, want) {
			t.Errorf("loads %v, want %v", loaded, want)
		}
	})
	t.Run("no memory controller", func(t *testing.T) {
		facts := good()
		facts.Controllers = []string{"cpu", "pids"}
		_, err := preparer{Config: Config{Facts: facts}, root: tree(t, prepared())}.prepare(t.Context())
		if err == nil || !strings.Contains(err.Error(), "cgroup_enable=memory") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestDelegate(t *testing.T) {
	inner := map[string]string{
		"cgroup.type": "domain\n", "cgroup.controllers": "cpuset cpu memory pids\n",
		"cgroup.subtree_control": "", "cgroup.procs": "1\n17\n", "init/cgroup.procs": "",
	}
	t.Run("in a container", func(t *testing.T) {
		root := tree(t, inner)
		moved, err := delegate(root)
		if err != nil || !moved {
			t.Fatalf("moved %v, %v", moved, err)
		}
		if got := read(t, root, "init/cgroup.procs"); !strings.HasPrefix(got, "1\n17") {
			t.Errorf("moved %q", got)
		}
		if got := strings.Fields(read(t, root, "cgroup.subtree_control")); strings.Join(got, " ") != "+cpuset +cpu +memory +pids" {
			t.Errorf("enabled %q", got)
		}
	})
	for name, change := range map[string]func(map[string]string){
		"at the real root":                func(f map[string]string) { delete(f, "cgroup.type") },
		"where controllers are delegated": func(f map[string]string) { f["cgroup.subtree_control"] = "cpuset cpu memory pids io\n" },
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for k, v := range inner {
				files[k] = v
			}
			change(files)
			root := tree(t, files)
			moved, err := delegate(root)
			if err != nil || moved || read(t, root, "init/cgroup.procs") != "" {
				t.Errorf("moved %v, %v", moved, err)
			}
		})
	}
}

func TestNoProxy(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	pods, ip := mustPrefixes("10.42.0.0/16"), mustAddrs("192.0.2.7")
	if got := NoProxy(pods, "cluster.local", ip); got != "" {
		t.Errorf("NO_PROXY is %q without a proxy", got)
	}
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("NO_PROXY", "example.com, .svc")
	want := "example.com,.svc,localhost,127.0.0.0/8,.cluster.local,10.42.0.0/16,192.0.2.7"
	if got := NoProxy(pods, "cluster.local", ip); got != want {
		t.Errorf("NO_PROXY is %q, want %q", got, want)
	}
}
