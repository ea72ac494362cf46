package k3shost

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// install writes files by their paths below a root, which it returns.
func install(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// A flag goes before a variable, a variable before a drop-in, and a drop-in before the file.
func TestRead(t *testing.T) {
	root := install(t, map[string]string{
		"etc/rancher/k3s/config.yaml":          "data-dir: /file\ndatastore-cafile: /file\ncluster-domain: file.local\nnode-name: file\ndocker: true\n",
		"etc/rancher/k3s/config.yaml.d/1.yml":  "datastore-cafile: /drop-in\ncluster-domain: drop-in.local\nnode-name: drop-in\n",
		"etc/systemd/system/k3s.service":       "[Service]\nEnvironment=K3S_RESOLV_CONF=/unit\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--node-name' \\\n\t'flag' --data-dir='/a folder' \\\n\n",
		"etc/systemd/system/k3s.service.env":   "# a comment\nexport K3S_NODE_NAME='variable'\nK3S_DATASTORE_CAFILE=\"/variable\"\nHTTPS_PROXY=x\n",
		"etc/systemd/system/k3s.service.d/a":   "",
		"etc/systemd/system/k3s-agent.service": "[Service]\nExecStart=/usr/local/bin/k3s agent --node-name other\n",
	})
	s, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{s.DataDir(), s.Config.Server.Datastore.CAFile, s.Config.Cluster.ClusterDomain, s.Config.Node.NodeName, s.Config.Node.ResolvConf, s.Unit, s.VariableFile}
	want := []string{"/a folder", "/variable", "drop-in.local", "flag", "/unit", "/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s.service.env"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if s.DropIns != "/etc/systemd/system/k3s.service.d" {
		t.Errorf("drop-ins are in %q", s.DropIns)
	}
	if err := s.Unreadable(); err != nil || len(s.Faults) == 0 || !strings.Contains(s.Faults[0].Error(), "docker") {
		t.Errorf("faults are %v, unreadable is %v", s.Faults, err)
	}
}

// The service may name another file, which may not be readable.
func TestUnreadable(t *testing.T) {
	root := install(t, map[string]string{
		"etc/rancher/k3s/config.yaml":    "data-dir: /no\n",
		"etc/other.yaml":                 "a: [\n",
		"etc/systemd/system/k3s.service": "ExecStart=k3s server -c /etc/other.yaml\n",
	})
	s, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Unreadable(); err == nil || !strings.Contains(err.Error(), "/etc/other.yaml") || s.DataDir() != DataFolder {
		t.Errorf("got error %v, and data in %s", err, s.DataDir())
	}
	if s, err := Read(t.TempDir()); err != nil || s.DataDir() != DataFolder || len(s.Faults) != 0 {
		t.Errorf("without k3s: %+v, %v", s, err)
	}
}
