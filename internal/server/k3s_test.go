package server

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// TestK3sSetUps loads configurations of k3s as people have them, and checks their arguments
// as a start does. Each can start a kedge, or is refused with the sentence that is wanted.
// notice is a part of what the log says.
func TestK3sSetUps(t *testing.T) {
	files, err := filepath.Glob("testdata/k3s/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]struct{ refused, notice string }{
		"single":        {"", "no Traefik"},
		"ha-etcd-first": {"", "Prometheus finds the service proxy's metrics"},
		"ha-etcd-next":  {"", ""},
		"ha-mysql":      {"", ""},
		"cilium":        {"", "no Traefik"},
		"calico":        {"", ""},
		"rancher":       {"", "kedge's is snapshot-retention"},
		"raspberry-pi":  {"", "kedge's is disable-snapshots"},
		"air-gap":       {"", "kedge pulls no images for its own parts"},
		"s3":            {"", "kedge's is s3-bucket"},
		"wireguard":     {"", "egress-selector-mode"},
		"tailscale":     {"run the VPN on the host", "vpn-auth"},
		"rootless":      {"run kedge as root", "rootless"},
	}
	if len(files) != len(wanted) {
		t.Errorf("%d files, %d are known", len(files), len(wanted))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		want, known := wanted[name]
		if !known {
			t.Errorf("%s is not known", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			cfg, _, err := config.LoadFiles([]string{file}, nil)
			if err == nil {
				cfg.Node.NodeName = "edge"
				err = CheckArguments(cfg)
			}
			if want.refused == "" && err != nil || !strings.Contains(fmt.Sprint(err), want.refused) {
				t.Errorf("got %v, want %q", err, want.refused)
			}
			if strings.Contains(fmt.Sprint(err, cfg.Notices), "SECRET") || strings.Contains(fmt.Sprint(err, cfg.Notices), "PASSWORD") {
				t.Errorf("a secret is told: %v, %v", err, cfg.Notices)
			}
			if !strings.Contains(fmt.Sprint(cfg.Notices), want.notice) {
				t.Errorf("no %q in %v", want.notice, cfg.Notices)
			}
		})
	}
}
