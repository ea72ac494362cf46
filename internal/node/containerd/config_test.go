package containerd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/kedge-dev/kedge/internal/base/host"
)

func sampleConfig(dir string) Config {
	return Config{
		Root: "/data/agent/containerd", State: "/run/kedge/containerd", Socket: "/run/kedge/containerd/containerd.sock",
		ConfigFile: dir + "/config.toml", DropIns: []string{dir + "/drop-ins/*.toml"}, CertsDir: "/data/agent/etc/containerd/certs.d",
		PauseImage: "kedge/pause:1", CNIBinDirs: []string{"/data/assets/bin", "/opt/cni/bin"}, CNIConfDir: "/data/agent/etc/cni/net.d",
		DefaultRuntime: "runc",
		Facts:          host.Facts{CgroupVersion: 2, CgroupDriver: host.DriverSystemd, SysResource: true},
	}
}

// onlyRunc is a host with no other runtime.
var onlyRunc = findings{snapshotter: overlayfs, runtimes: []Runtime{{"runc", runcType, ""}}, streamPort: "0"}

func TestGenerate(t *testing.T) {
	runtimes := []Runtime{{"runc", runcType, ""}, {"crun", runcType, "/usr/bin/crun"}, {"spin", "io.containerd.spin.v2", "/opt/kwasm/bin/containerd-shim-spin-v2"}}
	constrained := sampleConfig("/etc/kedge")
	constrained.SELinux, constrained.NonrootDevices = true, true
	constrained.Facts = host.Facts{CgroupVersion: 1, CgroupDriver: host.DriverCgroupfs}
	for name, file := range map[string]*fileConfig{
		"systemd":     generate(sampleConfig("/etc/kedge"), findings{overlayfs, runtimes, streamPort, host.ShimCgroup}),
		"constrained": generate(constrained, findings{native, runtimes[:1], "0", ""}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := toml.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".golden.toml")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			// The platform is that of the machine the test runs on.
			if unified := strings.ReplaceAll(string(want), "linux/amd64", file.Plugins.Transfer.UnpackConfig[0].Platform); string(got) != unified {
				t.Errorf("got:\n%s\nwant:\n%s", got, unified)
			}
		})
	}
}

func TestLoadMergesDropIns(t *testing.T) {
	for name, test := range map[string]struct {
		dropIn string
		driver any // of runc's cgroups
		crun   any // whether its handler is there
		err    string
	}{
		"none": {driver: true},
		"another runtime": {driver: true, crun: "io.containerd.runc.v2", dropIn: `
version = 4
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
runtime_type = 'io.containerd.runc.v2'`},
		"of the format of containerd 1": {driver: true, crun: "io.containerd.runc.v2", dropIn: `
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"`},
		"a default runtime that is not there": {dropIn: `
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'gone'`, err: `default-runtime "gone" is not installed on this host: install it, or set default-runtime to one of runc`},
		"a syntax error": {dropIn: "version = 3\nbroken", err: "user.toml: line 2"},
		"an OOM score":   {driver: true, dropIn: "version = 3\noom_score = -999\n[cgroup]\npath = '/x'"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.dropIn != "" {
				write(t, dir+"/drop-ins/user.toml", []byte(test.dropIn))
			}
			cfg := sampleConfig(dir)
			got, err := load(t.Context(), cfg, generate(cfg, onlyRunc))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.OOMScore != 0 || got.Cgroup.Path != "" {
				t.Error("a drop-in of the user set the OOM score or the cgroup of kedge's process")
			}
			runtimes := get(got.Plugins, "io.containerd.cri.v1.runtime", "containerd", "runtimes").(map[string]any)
			if driver := get(runtimes, "runc", "options", "SystemdCgroup"); driver != test.driver {
				t.Errorf("SystemdCgroup is %v, want %v", driver, test.driver)
			}
			if crun := get(runtimes, "crun", "runtime_type"); crun != test.crun {
				t.Errorf("type of crun is %v, want %v", crun, test.crun)
			}
			if root := got.Root; root != cfg.Root {
				t.Errorf("root is %s", root)
			}
		})
	}
}

func TestPullsItself(t *testing.T) {
	for dropIn, want := range map[string]string{
		"": "",
		"[plugins.'io.containerd.cri.v1.images']\nmax_concurrent_downloads = 10\nuse_local_image_pull = true": "max_concurrent_downloads use_local_image_pull",
		"[plugins.'io.containerd.cri.v1.images'.registry.configs.'a'.tls]\nca_file = '/x'":                    "configs",
		"[plugins.'io.containerd.transfer.v1.local']\nmax_concurrent_downloads = 10":                          "",
	} {
		dir := t.TempDir()
		write(t, dir+"/drop-ins/user.toml", []byte("version = 3\n"+dropIn))
		cfg := sampleConfig(dir)
		config, err := load(t.Context(), cfg, generate(cfg, onlyRunc))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(pullsItself(config), " "); got != want {
			t.Errorf("%s: got %q, want %q", dropIn, got, want)
		}
	}
}

// TestNRI wants the node resource interface to be off unless the user has a section for it.
func TestNRI(t *testing.T) {
	for dropIn, want := range map[string]bool{
		"": true,
		"[plugins.'io.containerd.nri.v1.nri']\ndisable = false":                 false,
		"[plugins.'io.containerd.nri.v1.nri']\nplugin_path = '/opt/nri'":        false,
		"[plugins.'io.containerd.cri.v1.images']\nmax_concurrent_downloads = 1": true,
	} {
		dir := t.TempDir()
		write(t, dir+"/drop-ins/user.toml", []byte("version = 3\n"+dropIn))
		cfg := sampleConfig(dir)
		config, err := load(t.Context(), cfg, generate(cfg, onlyRunc))
		if err != nil {
			t.Fatal(err)
		}
		var section struct {
			Disable bool `toml:"disable"`
		}
		if _, err := config.Decode(t.Context(), nriPlugin, &section); err != nil {
			t.Fatal(err)
		}
		if got := section.Disable; got != want {
			t.Errorf("%q: NRI is disabled: %v, want %v", dropIn, got, want)
		}
	}
}

func get(m map[string]any, keys ...string) any {
	var v any = m
	for _, key := range keys {
		inner, _ := v.(map[string]any)
		v = inner[key]
	}
	return v
}

func TestFindRuntimes(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	t.Setenv("PATH", dir)
	for _, path := range []string{dir + "/crun", other + "/containerd-shim-spin-v2", other + "/nvidia-container-runtime.cdi", other + "/crun"} {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []Runtime{
		{"runc", runcType, ""},
		{"crun", runcType, dir + "/crun"},
		{"nvidia-cdi", runcType, other + "/nvidia-container-runtime.cdi"},
		{"spin", "io.containerd.spin.v2", other + "/containerd-shim-spin-v2"},
	}
	got := findRuntimes([]string{other})
	if len(got) != len(want) {
		t.Fatalf("found %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("found %v, want %v", got[i], want[i])
		}
	}
}
