package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVXLAN(t *testing.T) {
	folder := t.TempDir()
	usual := Default().Cluster.VXLAN
	for name, test := range map[string]struct {
		conf, settings string
		want           VXLAN
		// fault is a part of the error.
		fault string
	}{
		"both":                {`{"Backend": {"Type": "vxlan", "VNI": 4096, "Port": 4789, "MTU": 1400}}`, "", VXLAN{4096, 4789}, ""},
		"one":                 {`{"Network": "10.42.0.0/16", "Backend": {"Port": 4789}}`, "", VXLAN{usual.VNI, 4789}, ""},
		"neither":             {`{"Backend": {"MTU": 1400}}`, "", usual, ""},
		"of another backend":  {`{"Backend": {"Type": "wireguard", "VNI": -1}}`, "flannel-backend: wireguard-native\n", usual, ""},
		"no such port":        {`{"Backend": {"Port": 70000}}`, "", usual, "invalid Port 70000: use a number from 1 to 65535"},
		"the longest name":    {`{"Backend": {"VNI": 9999999}}`, "", VXLAN{9999999, usual.Port}, ""},
		"too long a name":     {`{"Backend": {"VNI": 10000000}}`, "", usual, "VNI 10000000 cannot be used: use a number from 1 to 9999999"},
		"too long for IPv6":   {`{"Backend": {"VNI": 10000}}`, "cluster-cidr: 10.42.0.0/16,fd00:42::/56\nservice-cidr: 10.43.0.0/16,fd00:43::/112\n", usual, "from 1 to 9999"},
		"not a number":        {`{"Backend": {"VNI": "1"}}`, "", usual, "flannel-conf: "},
		"a file that is none": {"", "", usual, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			conf, file := filepath.Join(folder, "flannel.json"), filepath.Join(folder, "config.yaml")
			_ = os.Remove(conf)
			if test.conf != "" {
				if err := os.WriteFile(conf, []byte(test.conf), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(file, []byte(test.settings+"flannel-conf: "+conf+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c, _, err := LoadSources(file)
			if c.Cluster.VXLAN != test.want {
				t.Errorf("got %+v, want %+v", c.Cluster.VXLAN, test.want)
			}
			if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got error %v, want %q in it", err, test.fault)
			}
		})
	}
}
