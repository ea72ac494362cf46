package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestLoadGoodFiles(t *testing.T) {
	testutil.WithoutSettings(t)
	full := Default()
	full.DataDir = "/srv/kedge"
	full.Log.Debug, full.Log.Verbosity, full.Log.Level = true, 4, []string{"info", "scheduler=debug"}
	full.Server.BindAddress = "192.0.2.10"
	full.Server.HTTPSListenPort = 7443
	full.Server.TLSSAN = []string{"kedge.example.com", "203.0.113.5"}
	full.Server.WriteKubeconfigMode = "0640"
	full.Server.KubeAPIServerArgs = []string{"oidc-issuer-url=https://id.example.com", "feature-gates=A=true,B=false"}
	full.Cluster.ClusterCIDR = []string{"10.42.0.0/16", "fd00:42::/56"}
	full.Cluster.ServiceCIDR = []string{"10.43.0.0/16", "fd00:43::/112"}
	full.Cluster.ClusterDNS = []string{"10.43.0.10"}
	full.Cluster.FlannelBackend = "host-gw"
	full.Cluster.Gateway = GatewaySettings{
		IngressClasses: []string{"traefik", "nginx"}, TrustedProxies: []string{"192.0.2.0/24", "2001:db8::1"},
		ProxyProtocol: true, AccessLog: true, Ports: []string{"8080", "5432"}, ShareHosts: true, ACMEServer: "https://ca.example.com/directory",
	}
	full.Node.ContainerRuntimeEndpoint = "unix:///run/crio/crio.sock"
	for name, want := range map[string]*Config{"full": full, "empty": Default()} {
		got, err := Load(filepath.Join("testdata", name+".good.yaml"))
		if err != nil {
			t.Errorf("load %s.good.yaml: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestLoadReportsEveryFault(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.bad.yaml")
	if len(files) == 0 {
		t.Fatal("no bad files")
	}
	for _, file := range files {
		want, err := os.ReadFile(strings.TrimSuffix(file, ".yaml") + ".want")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Load(file)
		if err == nil {
			t.Errorf("%s: accepted", file)
		} else if got := err.Error() + "\n"; got != string(want) {
			t.Errorf("%s:\n got %s\nwant %s", file, got, want)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "node-name: file\ntls-san: one.example\nsnapshotter: native\nresolv-conf: /file\n")
	write(path+".d/10-more.yaml", "tls-san+: two.example\nsnapshotter: overlayfs\n")
	write(path+".d/ignored.txt", "nonsense")
	t.Setenv("KEDGE_RESOLV_CONF", "/env")
	t.Setenv("KEDGE_NODE_NAME", "env")
	c, err := Load(path, func(c *Config) error { c.Node.NodeName = "flag"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Server.TLSSAN; !reflect.DeepEqual(got, []string{"one.example", "two.example"}) {
		t.Errorf("tls-san+: got %v", got)
	}
	for what, got := range map[string][2]string{
		"a drop-in wins over the file":    {c.Node.Snapshotter, "overlayfs"},
		"the environment wins over files": {c.Node.ResolvConf, "/env"},
		"a flag wins over all":            {c.Node.NodeName, "flag"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %q, want %q", what, got[0], got[1])
		}
	}
}

// TestLoadJSON reads a JSON file, whose faults are told as those of JSON.
func TestLoadJSON(t *testing.T) {
	_, err := Load("testdata/syntax.bad.json")
	if err == nil || !strings.Contains(err.Error(), "testdata/syntax.bad.json: not JSON: line 4, column 3: ") || strings.Contains(err.Error(), "YAML") {
		t.Errorf("got %v", err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"node-name": "pi", "tls-san": ["a.example"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(path); err != nil || c.Node.NodeName != "pi" || len(c.Server.TLSSAN) != 1 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestTokenFiles reads both tokens from files.
func TestTokenFiles(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"token": "secret-1\n", "agent": "secret-2\n", "empty": "\n",
		"config.yaml": "token-file: " + dir + "/token\nagent-token-file: " + dir + "/agent\n",
		"both.yaml":   "agent-token: x\nagent-token-file: " + dir + "/agent\n",
		"empty.yaml":  "agent-token-file: " + dir + "/empty\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, sources, err := LoadSources(dir + "/config.yaml")
	if err != nil || c.Token != "secret-1" || c.Server.AgentToken != "secret-2" || sources["agent-token"] != dir+"/agent" {
		t.Errorf("got %q, %q, %v, %v", c.Token, c.Server.AgentToken, sources, err)
	}
	for file, want := range map[string]string{"both.yaml": "agent-token-file: cannot be set with agent-token", "empty.yaml": "agent-token-file: " + dir + "/empty is empty"} {
		if _, err := Load(filepath.Join(dir, file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", file, err)
		}
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	if err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("a missing file that was asked for: %v", err)
	}
}

func TestOverrideFaultsAreReportedWithTheOthers(t *testing.T) {
	fault := errors.New("flag fault")
	_, err := Load("testdata/three-faults.bad.yaml", func(*Config) error { return fault })
	if !errors.Is(err, fault) || !strings.Contains(err.Error(), "cluster-cidr") {
		t.Errorf("got %v", err)
	}
}

func TestFieldsAreWellDeclared(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Default().Fields() {
		if f.Key == "" || f.Usage == "" || seen[f.Key] {
			t.Errorf("field %q: no usage, or a key that is there twice", f.Key)
		}
		seen[f.Key] = true
	}
}
