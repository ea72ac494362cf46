package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

func TestReadConf(t *testing.T) {
	cluster := config.Default().Cluster
	read := func(backend, text string) (map[string]any, error) {
		t.Helper()
		cluster.FlannelBackend = backend
		path := filepath.Join(t.TempDir(), "flannel.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadConf(path, cluster)
	}
	got, err := read("vxlan", `{"Network": "10.42.0.0/16", "EnableIPv4": true, "Backend": {"Type": "vxlan", "MTU": 1400, "VNI": 1, "Port": 8472}}`)
	if err != nil || len(got) != 1 || got["MTU"] != 1400.0 {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := read("wireguard-native", `{"Backend": {"Type": "wireguard", "PersistentKeepaliveInterval": 25}}`); err != nil || got["PersistentKeepaliveInterval"] != 25.0 {
		t.Errorf("got %v, %v", got, err)
	}
	cluster.VXLAN = config.VXLAN{VNI: 4096, Port: 4789}
	if got, err := read("vxlan", `{"Backend": {"VNI": 4096, "Port": 4789}}`); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	cluster.VXLAN = config.Default().Cluster.VXLAN
	for text, want := range map[string]string{
		`{"Backend": {"Type": "udp"}}`:                 `Type "udp" is not flannel-backend vxlan`,
		`{"Backend": {"Port": 4789}}`:                  "Port is 4789, and the cluster's is 8472: remove it, or set the same in flannel-conf on the servers",
		`{"Backend": {"GBP": true}}`:                   "GBP cannot be set: remove it. flannel-backend vxlan takes only [DirectRouting MTU]",
		`{"Network": "10.99.0.0/16"}`:                  "Network 10.99.0.0/16 is not cluster-cidr 10.42.0.0/16",
		`{"Network": "10.42.0.0/16", "SubnetLen": 26}`: "node-cidr-mask-size",
		`{"Backend":`:                                  "read flannel-conf",
	} {
		if _, err := read("vxlan", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if _, err := ReadConf("/none", cluster); err == nil {
		t.Error("a missing file is accepted")
	}
	if got, err := ReadConf("", cluster); got != nil || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
