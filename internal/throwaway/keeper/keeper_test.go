package keeper

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
)

// TestEnvironment wants nodes to get the machine's proxies, and none of its settings of kedge.
func TestEnvironment(t *testing.T) {
	got := Environment([]string{"KEDGE_NODE_NAME=a", "K3S_TOKEN=b", "AWS_SECRET_ACCESS_KEY=c", "KUBECONFIG=d", "NOTIFY_SOCKET=e", "HOME=/home/f", "PATH=/evil", "HTTPS_PROXY=http://proxy:1", "no_proxy=g"})
	want := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "HTTPS_PROXY=http://proxy:1", "no_proxy=g"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestCollector wants only a temporary cluster to collect garbage seldom: others stay, and so does their memory.
func TestCollector(t *testing.T) {
	for _, temporary := range []bool{true, false} {
		k := &keeper{Held: &clusters.Held{Cluster: clusters.Cluster{Temporary: temporary}}}
		if got := slices.Contains(k.environment(), collector); got != temporary {
			t.Errorf("temporary %t: the collector is slow: %t", temporary, got)
		}
	}
}

// TestNodeSeesLittle wants nothing of the machine on a node that could be secret, and nothing that the node
// can change, except devices and cgroups.
func TestNodeSeesLittle(t *testing.T) {
	l := layout{root: "/run/x", helpers: "/var/cache/kedge", executable: "/usr/local/bin/kedge"}
	c := clusters.Cluster{Name: "x", Nodes: 1, Servers: 1, Config: "debug: true\n"}
	allowed := append(slices.Clone(borrowed), "/dev", "/sys/fs/cgroup", "/run/x/.cgroups", l.helpers, l.executable)
	setup := l.node(c, 1)
	for i, m := range setup.Mounts {
		if !strings.HasPrefix(m.Source, "/") {
			continue
		}
		if !slices.Contains(allowed, m.Source) {
			t.Errorf("the node sees %s", m.Source)
		}
		writable := []string{"/dev", "/sys/fs/cgroup", "/run/x/.cgroups"}
		if os.Geteuid() == 0 && !slices.Contains(writable, m.Source) && setup.Mounts[i+1].Target != m.Target {
			t.Errorf("the node can change %s", m.Source)
		}
		if !strings.HasPrefix(m.Target, "/run/x/") {
			t.Errorf("%s is mounted on %s of the machine", m.Source, m.Target)
		}
	}
	if setup.Files["/etc/kedge/config.yaml"] != c.Config || setup.Root != "/run/x" {
		t.Errorf("the setup is %+v", setup)
	}
	for _, secret := range []string{
		"/etc/shadow", "/etc/kedge/kedge.yaml", "/etc/ssl/private/machine.key", "/etc/pki/tls/private/machine.key", "/etc/pki/consumer/key.pem",
		"/etc/ssh/ssh_host_ed25519_key", "/home/user/.ssh/id_ed25519", "/root/.kube/config",
	} {
		for _, path := range borrowed {
			if secret == path || strings.HasPrefix(secret, path+"/") {
				t.Errorf("nodes see %s, in %s", secret, path)
			}
		}
	}
	if _, stays := setup.Files["/etc/machine-id"]; !stays || setup.Files["/etc/machine-id"] == l.node(clusters.Cluster{Name: "y", Servers: 1}, 1).Files["/etc/machine-id"] {
		t.Error("nodes of two clusters have the same machine ID")
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server-1.log")
	if err := os.WriteFile(path, []byte(strings.Repeat("a line\n", 10000)+"the last\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path); len(got) > logTail+100 || !strings.HasPrefix(got, "a line\n") || !strings.HasSuffix(got, "the last\n(server-1.log)") {
		t.Errorf("got %d bytes: %s", len(got), got[max(0, len(got)-100):])
	}
}

// TestPublishOnIPv4 wants 0.0.0.0 to be the addresses of IPv4 only.
func TestPublishOnIPv4(t *testing.T) {
	free, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := listen("test", netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(free)))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if address := listener.Addr().(*net.TCPAddr).AddrPort().Addr(); !address.Is4() {
		t.Errorf("listens on %s", address)
	}
}

// TestAttachWaits has an interface of a killed keeper, which goes after a while or stays.
func TestAttachWaits(t *testing.T) {
	tries := 0
	err := attach(t.Context(), "kedge-1", func() error {
		if tries++; tries < 3 {
			return fmt.Errorf("make veth: %w", unix.EEXIST)
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("got %v after %d tries", err, tries)
	}
	err = attach(t.Context(), "kedge-1", func() error { return unix.EPERM })
	if err != unix.EPERM {
		t.Errorf("another fault became %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := attach(ctx, "kedge-1", func() error { return unix.EEXIST }); err == nil {
		t.Error("an end was ignored")
	}
}
