package loadbalancer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// vip is the address of the control plane in TestVIP.
var vip = netip.MustParseAddr("172.31.0.150")

// TestVIP has three servers answer at one address, and kills the one that has it.
func TestVIP(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := network.NewHost(t, "server-1").StartServer(t, "--cluster-init", "--vip="+vip.String())
	first.WaitReady()
	servers := []*harness.Server{first}
	for i := range 2 {
		host := network.NewHost(t, fmt.Sprint("server-", i+2))
		// It joins by the address.
		server := host.StartServer(t, "--server=https://"+vip.String()+":6443", "--token="+first.Token(), "--vip="+vip.String())
		server.WaitReady()
		servers = append(servers, server)
	}
	agentHost := network.NewHost(t, "agent-1")
	agent := agentHost.StartAgent(t, first, "--server=https://"+vip.String()+":6443")
	agent.WaitReady()
	client := network.NewHost(t, "client")
	client.WriteFile("/etc/kedge/kedge.yaml", strings.ReplaceAll(readFile(t, first.Host, "/etc/kedge/kedge.yaml"), "127.0.0.1", vip.String()))
	client.Setenv("KUBECONFIG", "/etc/kedge/kedge.yaml")
	kubectl := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		output, err := client.Kedge(ctx, "kubectl", "--kubeconfig=/etc/kedge/kedge.yaml", "--request-timeout=2s", "get", "nodes").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		return err
	}
	harness.Eventually(t, cluster.Patience, "kubectl to reach the address", kubectl)

	for range 2 {
		i := slices.IndexFunc(servers, func(server *harness.Server) bool { return hasAddress(t.Context(), server.Host, vip.String()) })
		if i < 0 {
			t.Fatal("no server has the address")
		}
		holder := servers[i]
		holder.Kill9()
		began := time.Now()
		harness.Eventually(t, cluster.Patience, "another server to answer at the address", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			conn, err := client.DialContext(ctx, "tcp", net.JoinHostPort(vip.String(), "6443"))
			if err == nil {
				conn.Close()
			}
			return err
		})
		answered := time.Since(began)
		harness.Eventually(t, cluster.Patience, "kubectl to reach the address again", kubectl)
		t.Logf("after %s was killed, the address answered after %s, and kubectl after %s", holder.Host.Name,
			answered.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
		holder.Start()
		holder.WaitReady()
	}

	t.Log("a server that stops in order releases the address")
	i := slices.IndexFunc(servers, func(server *harness.Server) bool { return hasAddress(t.Context(), server.Host, vip.String()) })
	if i < 0 {
		t.Fatal("no server has the address")
	}
	servers[i].Terminate()
	if hasAddress(t.Context(), servers[i].Host, vip.String()) {
		t.Error("the address is still on the server that has stopped")
	}
	harness.Eventually(t, cluster.Patience, "kubectl to reach the address", kubectl)
}

func readFile(t *testing.T, host *harness.Host, path string) string {
	t.Helper()
	text, err := os.ReadFile(host.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
