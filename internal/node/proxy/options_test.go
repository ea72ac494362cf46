package proxy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"

	"github.com/kedge-dev/kedge/internal/base/config"
)

var cluster = config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, ServiceCIDR: []string{"10.43.0.0/16"}}

func TestConfigurationDefaults(t *testing.T) {
	c, err := newConfiguration(cluster, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != proxyconfig.ProxyModeNFTables || c.HealthzBindAddress != "127.0.0.1:10256" {
		t.Errorf("got mode %s, health at %s", c.Mode, c.HealthzBindAddress)
	}
	if len(c.DetectLocal.ClusterCIDRs) != 1 || c.DetectLocal.ClusterCIDRs[0] != "10.42.0.0/16" {
		t.Errorf("got cluster ranges %v", c.DetectLocal.ClusterCIDRs)
	}
	if len(c.NodePortAddresses) != 1 || c.NodePortAddresses[0] != "primary" {
		t.Errorf("got NodePort addresses %v", c.NodePortAddresses)
	}
}

func TestExpandNodePortAddresses(t *testing.T) {
	c, err := newConfiguration(cluster, []string{"nodeport-addresses=primary,localhost,198.51.100.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	got := expandNodePortAddresses(c.NodePortAddresses, []string{"192.0.2.1/32"})
	if want := []string{"192.0.2.1/32", "127.0.0.0/8", "::1/128", "198.51.100.0/24"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := expandNodePortAddresses([]string{"all"}, nil), []string{"0.0.0.0/0", "::/0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConfigurationArguments(t *testing.T) {
	c, err := newConfiguration(cluster, []string{
		"proxy-mode=iptables", "--masquerade-all=true", "nodeport_addresses=192.0.2.0/24,198.51.100.0/24",
		"conntrack-tcp-timeout-established=2h", "cluster-cidr=10.50.0.0/16", "healthz-bind-address=0.0.0.0:10256",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != proxyconfig.ProxyModeIPTables || !c.Linux.MasqueradeAll || len(c.NodePortAddresses) != 2 ||
		c.Linux.Conntrack.TCPEstablishedTimeout.Duration != 2*time.Hour || c.DetectLocal.ClusterCIDRs[0] != "10.50.0.0/16" {
		t.Errorf("got %+v", c)
	}
}

func TestConfigurationFaults(t *testing.T) {
	for arg, want := range map[string]string{
		"proxy-mod=iptables":         `unknown argument "proxy-mod"`,
		"proxy-mode=ipvs":            "use nftables or iptables",
		"masquerade-all=perhaps":     "masquerade-all",
		"kubeconfig=/root/config":    "kedge connects it itself",
		"detect-local-mode=Nonsense": "DetectLocalMode",
		"nodeport-addresses=nowhere": "NodePortAddresses",
	} {
		if _, err := newConfiguration(cluster, []string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", arg, err, want)
		}
	}
	_, err := newConfiguration(cluster, []string{"a=1", "b=2"})
	if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("got %v, want both faults", err)
	}
}

func TestNewNamesTheModeForAKernelWithoutNftables(t *testing.T) {
	lack := errors.New("the kernel's nf_tables lacks the family inet")
	if _, err := New(Config{Cluster: cluster, NoNftables: lack}); !errors.Is(err, lack) || !strings.Contains(err.Error(), "--kube-proxy-arg proxy-mode=iptables") {
		t.Errorf("got %v", err)
	}
	if _, err := New(Config{Cluster: cluster, NoNftables: lack, Args: []string{"proxy-mode=iptables"}}); err != nil {
		t.Errorf("got %v", err)
	}
	without := cluster
	without.DisableKubeProxy = true
	if _, err := New(Config{Cluster: without, NoNftables: lack}); err != nil {
		t.Errorf("without kube-proxy: got %v", err)
	}
}
