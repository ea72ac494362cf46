package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// configKey is the flag that names the configuration file. It is no setting.
const configKey = "config"

// documented returns the words of a file in testdata, without its comments.
func documented(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			words = append(words, strings.Fields(line)...)
		}
	}
	return words
}

// TestK3sFlags wants a verdict on each flag that k3s documents.
func TestK3sFlags(t *testing.T) {
	var keys []string
	for _, row := range k3sKeys {
		if slices.Contains(keys, row.Key) {
			t.Errorf("%s has two verdicts", row.Key)
		}
		keys = append(keys, row.Key)
	}
	flags := documented(t, "k3s-flags.txt")
	if len(flags) < 150 {
		t.Fatalf("only %d flags", len(flags))
	}
	for _, flag := range flags {
		if !slices.Contains(keys, flag) {
			t.Errorf("%s has no verdict", flag)
		}
	}
	for _, key := range keys {
		if !slices.Contains(flags, key) {
			t.Errorf("%s has a verdict, and is no flag of k3s", key)
		}
	}
}

// TestK3sRows wants the verdicts to agree with the settings that there are.
func TestK3sRows(t *testing.T) {
	own := map[string]Field{}
	for _, f := range Default().Fields() {
		own[f.Key] = f
	}
	counts := map[Verdict]int{}
	for _, row := range k3sKeys {
		counts[row.Verdict]++
		_, there := own[row.Key]
		if is := row.Verdict == Same; is != there && row.Key != configKey {
			t.Errorf("%s is %q, but kedge has it: %t", row.Key, row.Verdict, there)
		}
		to, there := own[row.To]
		if there != (row.Verdict == Alias) {
			t.Errorf("%s is %q, and leads to %q", row.Key, row.Verdict, row.To)
		}
		if there && to.IsBool() != row.IsSwitch() && row.Key != "no-flannel" {
			t.Errorf("%s is a switch: %t, and %s is not the same", row.Key, row.IsSwitch(), row.To)
		}
		checkSays(t, row.Key, row.Verdict, row.Says)
	}
	t.Logf("verdicts: %v", counts)
	for _, value := range k3sValues {
		row, known := K3sKeyOf(value.Key)
		if !known || (value.To != "") != (value.Verdict == Alias) || row.IsSwitch() && value.Value != "true" && value.Value != "false" {
			t.Errorf("%+v: a row of a value needs a key of the table, and another value exactly if its verdict is %q", value, Alias)
		}
		if value.Verdict == Refused {
			checkSays(t, value.Key, value.Verdict, value.Says)
		}
	}
	for _, key := range k3sSwitches {
		if row, known := K3sKeyOf(key); !known || row.Verdict == Same {
			t.Errorf("%s needs not be a switch", key)
		}
	}
	for key, letter := range k3sLetters {
		if f := own[key]; f.Key == "" || f.IsBool() || len(letter) != 1 {
			t.Errorf("-%s stands for %s", letter, key)
		}
	}
}

// checkSays wants whole sentences, and those that are needed.
func checkSays(t *testing.T, name string, verdict Verdict, says string) {
	t.Helper()
	switch {
	case says == "" && (verdict == Needless || verdict == Refused):
		t.Errorf("%s is %q, and nothing says why", name, verdict)
	case says != "" && !strings.HasSuffix(says, "."):
		t.Errorf("%s: %q is no sentence", name, says)
	}
}

// TestK3sVariables wants each variable that k3s documents to mean a key or to have a verdict.
func TestK3sVariables(t *testing.T) {
	names := documented(t, "k3s-variables.txt")
	for _, name := range names {
		suffix, installs := strings.CutPrefix(name, "INSTALL_K3S_")
		if installs {
			if i := slices.IndexFunc(k3sInstallVariables, func(row K3sKey) bool { return row.Key == suffix }); i < 0 {
				t.Errorf("%s has no verdict", name)
			} else {
				checkSays(t, name, k3sInstallVariables[i].Verdict, k3sInstallVariables[i].Says)
			}
			continue
		}
		if says := k3sNoKeys[name]; says != "" {
			checkSays(t, name, Needless, says)
			continue
		}
		key := k3sVariables[name] + awsVariables[name]
		if key != configKey {
			if got, _ := Default().variable(name); got == "" || got != key {
				t.Errorf("%s means %q", name, got)
			}
		}
	}
	for _, name := range slices.AppendSeq(slices.Collect(maps.Keys(k3sVariables)), maps.Keys(k3sNoKeys)) {
		if !slices.Contains(names, name) {
			t.Errorf("k3s has no %s", name)
		}
	}
}

// TestInstallerKnowsVariables wants install.sh to know what the table says of k3s's variables.
func TestInstallerKnowsVariables(t *testing.T) {
	script, err := os.ReadFile("../../../install.sh")
	if err != nil {
		t.Fatal(err)
	}
	var same, needless []string
	for _, row := range k3sInstallVariables {
		switch row.Verdict {
		case Same:
			same = append(same, row.Key)
		case Needless:
			needless = append(needless, row.Key)
		case Refused:
			if want := row.Key + ") fail \"INSTALL_K3S_" + row.Key + ": " + row.Says + "\""; !strings.Contains(string(script), want) {
				t.Errorf("install.sh lacks %s", want)
			}
		}
	}
	for _, want := range []string{"\n\t\t" + strings.Join(same, " | ") + ")", "\n\t\t" + strings.Join(needless, " | ") + ")"} {
		if !strings.Contains(string(script), want) {
			t.Errorf("install.sh lacks %q", want)
		}
	}
}

// TestK3sNames loads k3s's names from a file and from the environment.
func TestK3sNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := `
etcd-s3: true
etcd-s3-bucket: [backups]
etcd-s3-access-key: key
etcd-snapshot-retention: 7
flannel-backend: wireguard
disable: [traefik, servicelb]
disable-etcd: false
rootless: false
helm-controller-arg: []
vpn-auth: ""
airgap-extra-registry: null
pause-image: rancher/pause:1
kube-controller-arg: [v=2]
kube-controller-arg+: [v=3]
advertise-port: 0
`
	if err := os.WriteFile(file, []byte(strings.Replace(text, "[backups]", "backups", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(file+".d", "20.yml"), []byte("etcd-s3-region: here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"K3S_KUBECONFIG_MODE": "644", "KEDGE_KUBECONFIG_OUTPUT": "/tmp/k.yaml", "K3S_TOKEN": "theirs", "KEDGE_TOKEN": "ours", "AWS_SECRET_ACCESS_KEY": "hush",
		"KEDGE_NODE_NAEM": "x", "K3S_NO_SUCH": "x", "KEDGE_ETCD_S3_FOLDER": "/f",
		"K3S_LB_SERVER_PORT": "6444", "K3S_CLUSTER_SECRET": "older",
		"KEDGE_AGENT_HTTP_PROXY_ALLOWED": "true", "CONTAINERD_HTTPS_PROXY": "http://proxy", "CONTAINERD_NAMESPACE": "k8s.io",
	} {
		t.Setenv(name, value)
	}
	c, sources, err := LoadSources(file, func(c *Config) error { return c.SetFlag("etcd-snapshot-dir", "/srv") })
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"s3": "true", "s3-bucket": "backups", "s3-access-key": "key", "s3-secret-key": "hush", "s3-region": "here", "s3-folder": "/f",
		"snapshot-retention": "7", "snapshot-dir": "/srv", "flannel-backend": "wireguard-native", "disable": "traefik,servicelb",
		"kube-controller-manager-arg": "v=2,v=3", "write-kubeconfig-mode": "644", "write-kubeconfig": "/tmp/k.yaml", "token": "ours",
	} {
		i := slices.IndexFunc(c.Fields(), func(f Field) bool { return f.Key == key })
		if got := c.Fields()[i].String(); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
		if sources[key] == "" {
			t.Errorf("%s has no source", key)
		}
	}
	if got := sources["snapshot-dir"]; got != "--etcd-snapshot-dir" {
		t.Errorf("snapshot-dir is from %s", got)
	}
	notices := ""
	for _, notice := range c.Notices {
		notices += notice.String() + "\n"
	}
	for _, want := range []string{
		":2: etcd-s3: This is k3s's name: kedge's is s3.",
		"flannel-backend: The value wireguard is k3s's: kedge has flannel-backend: wireguard-native.",
		"pause-image: kedge's pause image is part of the executable.",
		"$K3S_KUBECONFIG_MODE: This is k3s's name: kedge's is KEDGE_WRITE_KUBECONFIG_MODE.",
		"$KEDGE_NODE_NAEM: No setting has this variable: did you mean KEDGE_NODE_NAME?",
		"$K3S_NO_SUCH: No setting has this variable.",
		"$K3S_LB_SERVER_PORT: lb-server-port: A node of kedge reaches",
		"$KEDGE_AGENT_HTTP_PROXY_ALLOWED: A node of kedge reaches the servers directly", "$CONTAINERD_HTTPS_PROXY: containerd is a part of kedge: set HTTPS_PROXY.",
		"$K3S_CLUSTER_SECRET: cluster-secret: This is k3s's name: kedge's is token.",
	} {
		if !strings.Contains(notices, want) {
			t.Errorf("want %q in\n%s", want, notices)
		}
	}
	if strings.Contains(notices, "kedge's is K3S_") || strings.Contains(notices, "CONTAINERD_NAMESPACE") || strings.Contains(notices, "rootless") || strings.Contains(notices, "hush") || strings.Contains(notices, "ours") {
		t.Errorf("got\n%s", notices)
	}
}

// TestK3sRefused wants one sentence with what to do about what is not possible.
func TestK3sRefused(t *testing.T) {
	c, sources := Default(), Sources{}
	for name, want := range map[string]string{
		"docker":                     "docker: k3s has this, and kedge does not. kedge brings containerd: remove the key.",
		"vpn-auth":                   "run the VPN on the host",
		"cluster-reset-restore-path": "kedge snapshot restore FILE",
		"etcd-s3-buckt":              "did you mean etcd-s3-bucket?",
	} {
		err := c.set(name, given{values: []string{"true"}, source: "here"}, sources)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := c.set("flannel-backend", given{values: []string{"ipsec"}, source: "here"}, sources); err == nil || !strings.Contains(err.Error(), "wireguard-native") {
		t.Errorf("flannel-backend ipsec: got %v", err)
	}
}

// TestNoFlannel has the switch that k3s had before flannel-backend, on and off.
func TestNoFlannel(t *testing.T) {
	for value, want := range map[string]string{"true": "none", "false": "vxlan"} {
		c := Default()
		if err := c.set("no-flannel", given{values: []string{value}, source: "here"}, Sources{}); err != nil || c.Cluster.FlannelBackend != want {
			t.Errorf("no-flannel %s: %q, %v", value, c.Cluster.FlannelBackend, err)
		}
	}
}
