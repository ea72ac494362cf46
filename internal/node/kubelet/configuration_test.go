package kubelet

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/host"
)

var update = flag.Bool("update", false, "write testdata/*.yaml anew")

// testConfig is a node on a machine with cgroup v2 and systemd.
func testConfig() Config {
	return Config{
		NodeName:        "node-1",
		NodeIPs:         []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		RuntimeSocket:   "/run/kedge/containerd/containerd.sock",
		ClusterDNS:      []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		ClusterDomain:   "cluster.local",
		ResolvConf:      "/etc/resolv.conf",
		ServingCertFile: "/var/lib/kedge/agent/tls/serving-kubelet.crt",
		ServingKeyFile:  "/var/lib/kedge/agent/tls/serving-kubelet.key",
		ClientCAFile:    "/var/lib/kedge/agent/tls/client-ca.crt",
		StaticPods:      "/var/lib/kedge/agent/pod-manifests",
		Root:            "/var/lib/kubelet",
		Facts:           host.Facts{CgroupVersion: 2, CgroupDriver: host.DriverSystemd, Systemd: true, SysResource: true},
	}
}

// text returns a kubelet's whole configuration in the format of a golden file.
func text(t *testing.T, server *options.KubeletServer) string {
	t.Helper()
	scheme, _, err := kubeletscheme.NewSchemeAndCodecs()
	must(t, err)
	versioned := new(kubeletv1beta1.KubeletConfiguration)
	must(t, scheme.Convert(&server.KubeletConfiguration, versioned, nil))
	configuration, err := yaml.Marshal(versioned)
	must(t, err)
	flags, err := yaml.Marshal(server.KubeletFlags)
	must(t, err)
	return "# flags\n" + string(flags) + "---\n# configuration\n" + string(configuration)
}

func TestConfigure(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"cgroup-v2-systemd": func(*Config) {},
		"cgroup-v1-cgroupfs": func(c *Config) {
			c.Facts = host.Facts{CgroupVersion: 1, CgroupDriver: host.DriverCgroupfs}
		},
		"dual-stack": func(c *Config) {
			c.NodeIPs = append(c.NodeIPs, netip.MustParseAddr("2001:db8::1"))
			c.ClusterDNS = append(c.ClusterDNS, netip.MustParseAddr("fd00:43::a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			change(&cfg)
			server, err := configure(cfg, limits{oomScoreAdj: 200, openFiles: 4096})
			must(t, err)
			must(t, validate(server))
			got, golden := text(t, server), filepath.Join("testdata", name+".yaml")
			if *update {
				must(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			must(t, err)
			if got != string(want) {
				t.Errorf("the configuration differs from %s (go test -update rewrites it):\n%s", golden, got)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
		return path
	}
	const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	config := write("kubelet.yaml", header+"maxPods: 50\npodsPerCore: 3\nevictionHard: {memory.available: 200Mi}\nfeatureGates: {EventedPLEG: true}\n")
	write("conf.d/10.conf", header+"maxPods: 60\n")
	write("conf.d/ignored.yaml", "rubbish")
	// As docs/nodes.md has it.
	write("kubelet.d/shutdown.conf", header+"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n")

	for name, c := range map[string]struct {
		arguments []string
		want      []string // lines that the configuration must have
		gone      string   // text that it must not have
		err       []string // parts of the error
	}{
		"values": {
			arguments: []string{"max-pods=42", "node-labels=a=b,c=d", "eviction-hard=memory.available<5%", "cgroup-root=/kedge", "protect-kernel-defaults"},
			want:      []string{"maxPods: 42", "  a: b", "  memory.available: 5%", "cgroupRoot: /kedge", "protectKernelDefaults: true"},
			gone:      "imagefs.inodesFree",
		},
		"underscores": {arguments: []string{"max_pods=42"}, want: []string{"maxPods: 42"}},
		"a list in parts": {
			arguments: []string{"register-with-taints=a=b:NoSchedule", "allowed-unsafe-sysctls=net.core.somaxconn", "allowed-unsafe-sysctls=kernel.msg*"},
			want:      []string{"- net.core.somaxconn", "- kernel.msg*", "- effect: NoSchedule"},
		},
		"file": {
			arguments: []string{"config=" + config},
			want: []string{"maxPods: 50", "podsPerCore: 3", "  memory.available: 200Mi", "  EventedPLEG: true",
				// Settings that the file does not mention keep kedge's values.
				"  imagefs.available: 5%", "containerRuntimeEndpoint: unix:///run/kedge/containerd/containerd.sock"},
			gone: "readOnlyPort",
		},
		"folder over file": {
			arguments: []string{"config-dir=" + filepath.Join(dir, "conf.d"), "config=" + config},
			want:      []string{"maxPods: 60", "podsPerCore: 3"},
		},
		"pods end in order before a reboot": {
			arguments: []string{"config-dir=" + filepath.Join(dir, "kubelet.d")},
			want:      []string{"shutdownGracePeriod: 30s", "shutdownGracePeriodCriticalPods: 10s"},
		},
		"argument over file": {
			arguments: []string{"max-pods=42", "config=" + config, "feature-gates=CPUManagerPolicyAlphaOptions=false"},
			want:      []string{"maxPods: 42", "podsPerCore: 3", "  EventedPLEG: true", "  CPUManagerPolicyAlphaOptions: false"},
		},
		"all faults at once": {
			arguments: []string{"max-pod=5", "max-pods=many", "kubeconfig=/x", "positional stays one", "hostname_override=x", "help"},
			err: []string{"--kubelet-arg max-pod=5: unknown flag", "--kubelet-arg max-pods=many: invalid argument", "--kubelet-arg kubeconfig=/x: kedge connects",
				"--kubelet-arg positional stays one: unknown flag", "use --node-name", "--kubelet-arg help: no such argument"},
		},
		"not a name":      {arguments: []string{"=5"}, err: []string{"--kubelet-arg =5: bad flag syntax"}},
		"bad combination": {arguments: []string{"image-gc-high-threshold=10"}, err: []string{"see --kubelet-arg", "imageGCHighThresholdPercent"}},
		"bad label":       {arguments: []string{"node-labels=kubernetes.io/x=y"}, err: []string{"see --kubelet-arg", "kubernetes.io/x"}},
		"bad gate":        {arguments: []string{"feature-gates=NoSuchGate=true"}, err: []string{"--kubelet-arg feature-gates", "NoSuchGate"}},
		"missing file":    {arguments: []string{"config=/no/such"}, err: []string{"--kubelet-arg config", "/no/such"}},
		"missing folder":  {arguments: []string{"config-dir=/no/such"}, err: []string{"--kubelet-arg config-dir=/no/such"}},
		"unknown key":     {arguments: []string{"config=" + write("typo.yaml", header+"maxPod: 5\n")}, err: []string{"typo.yaml", "maxPod"}},
		"another kind":    {arguments: []string{"config=" + write("kind.yaml", "kind: Pod\n")}, err: []string{"kind.yaml must be of apiVersion"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Args = c.arguments
			k, err := New(cfg)
			if len(c.err) > 0 {
				for _, part := range c.err {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("the error lacks %q:\n%v", part, err)
					}
				}
				return
			}
			must(t, err)
			got := text(t, k.server)
			for _, line := range c.want {
				if !strings.Contains(got, line+"\n") {
					t.Errorf("the configuration lacks %q:\n%s", line, got)
				}
			}
			if c.gone != "" && strings.Contains(got, c.gone) {
				t.Errorf("the configuration still has %q", c.gone)
			}
		})
	}
}
