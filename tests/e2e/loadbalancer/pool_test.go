package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// announcer returns the host that has an address.
func (b *balanced) announcer(address string) *harness.Host {
	for _, host := range b.hosts {
		if hasAddress(b.Context(), host, address) {
			return host
		}
	}
	return nil
}

func hasAddress(ctx context.Context, host *harness.Host, address string) bool {
	output, err := host.Command(ctx, "ip", "-oneline", "address").Output()
	return err == nil && strings.Contains(string(output), " "+address+"/")
}

// TestPool announces addresses of pools.
func TestPool(t *testing.T) {
	t.Parallel()
	b := start(t, "--cluster-cidr=10.42.0.0/16,fd00:42::/56", "--service-cidr=10.43.0.0/16,fd00:43::/112")
	b.RunWeb("web-1", b.hosts[1].Name)
	b.RunWeb("web-2", b.hosts[2].Name)
	b.Apply(`
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: lan}
spec:
  addresses: ["172.31.0.100-172.31.0.101", "fd31::100", "172.31.0.200/32"]
`)
	if _, err := b.TryKubectl(`
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: wrong}
spec: {addresses: [everything]}
`, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "192.0.2.240/28") {
		t.Errorf("a pool with wrong addresses: %v", err)
	}

	t.Log("an address of each family")
	b.serve("web", 80, "kedge.dev/pool: lan", "ipFamilyPolicy: RequireDualStack")
	b.has("web", "172.31.0.100", "fd31::100")
	b.reach("172.31.0.100", 80, "hostname=web-")
	b.reach("fd31::100", 80, "hostname=web-")

	t.Log("an address that the Service asks for, and one that is taken")
	b.serve("asks", 80, "kedge.dev/load-balancer-ip: 172.31.0.200")
	b.has("asks", "172.31.0.200")
	b.reach("172.31.0.200", 80, "hostname=web-")
	b.serve("late", 80, "kedge.dev/load-balancer-ip: 172.31.0.200")
	b.Told(cluster.Namespace, "late", "172.31.0.200", "default/asks")
	b.has("late")
	b.serve("class", 80, "", "loadBalancerClass: kedge.dev/pool", "externalTrafficPolicy: Local")
	b.has("class", "172.31.0.101")
	b.serve("full", 80, "", "loadBalancerClass: kedge.dev/pool")
	b.Told(cluster.Namespace, "full", "no LoadBalancerPool", "free")

	t.Log("Local announces where the endpoints are")
	b.reach("172.31.0.101", 80, "client="+b.client.Address.String()+"\n")
	holder := b.announcer("172.31.0.101")
	if holder == nil || holder == b.hosts[0] {
		t.Fatalf("the address with the policy Local is on %v", holder)
	}
	b.Kubectl("delete", "pod", map[string]string{b.hosts[1].Name: "web-1", b.hosts[2].Name: "web-2"}[holder.Name])
	b.Eventually("the address to move to the other endpoint", func() error {
		if now := b.announcer("172.31.0.101"); now == nil || now == holder {
			return fmt.Errorf("it is on %v", now)
		}
		return nil
	})
	b.reach("172.31.0.101", 80, "client="+b.client.Address.String()+"\n")
	b.RunWeb("web-3", b.hosts[0].Name)

	for name, die := range map[string]func(*harness.Agent){
		"is cut off": func(agent *harness.Agent) { agent.Host.CutLink() },
		"is killed":  func(agent *harness.Agent) { agent.Kill9() },
	} {
		i := slices.IndexFunc(b.agents, func(agent *harness.Agent) bool { return hasAddress(t.Context(), agent.Host, "172.31.0.200") })
		if i < 0 {
			// The server has it, which cannot die here.
			b.Kubectl("label", "node", b.hosts[0].Name, "node.kubernetes.io/exclude-from-external-load-balancers=")
			b.Eventually("an agent to have the address", func() error {
				i = slices.IndexFunc(b.agents, func(agent *harness.Agent) bool { return hasAddress(t.Context(), agent.Host, "172.31.0.200") })
				if i < 0 {
					return errors.New("none has it")
				}
				return nil
			})
			b.reach("172.31.0.200", 80, "hostname=web-")
		}
		t.Logf("the node %s that has the address %s", b.agents[i].Host.Name, name)
		die(b.agents[i])
		began := time.Now()
		b.Eventually("another node to have the address", func() error {
			for _, host := range b.hosts {
				if host != b.agents[i].Host && hasAddress(t.Context(), host, "172.31.0.200") {
					return nil
				}
			}
			return errors.New("none has it")
		})
		moved := time.Since(began)
		b.reach("172.31.0.200", 80, "hostname=web-")
		t.Logf("the address moved after %s, and answered after %s", moved.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
		b.agents[i].Host.HealLink()
		if name == "is killed" {
			b.agents[i].Start()
		}
		b.agents[i].WaitReady()
		b.Eventually("the address to be on one host", func() error {
			var on []string
			for _, host := range b.hosts {
				if hasAddress(t.Context(), host, "172.31.0.200") {
					on = append(on, host.Name)
				}
			}
			if len(on) != 1 {
				return fmt.Errorf("it is on %v", on)
			}
			return nil
		})
	}

	t.Log("a node that stops in order hands over, and a Service that goes takes its address along")
	b.Kubectl("delete", "service", "asks")
	b.Eventually("nobody to have the address of the Service that is gone", func() error {
		if host := b.announcer("172.31.0.200"); host != nil && hasAddress(t.Context(), host, "172.31.0.200") {
			// late has asked for the same address.
			if got := b.ingress("late"); !slices.Equal(got, []string{"172.31.0.200"}) {
				return fmt.Errorf("it is on %s", host.Name)
			}
		}
		return nil
	})
	b.has("late", "172.31.0.200")
	b.reach("172.31.0.200", 80, "hostname=web-")

	t.Log("servicelb is disabled")
	b.Server.Terminate()
	server := b.Server.Host.StartServer(t, "--disable=servicelb", "--cluster-cidr=10.42.0.0/16,fd00:42::/56", "--service-cidr=10.43.0.0/16,fd00:43::/112")
	server.WaitReady()
	b.Server, b.Client = server, server.Client()
	b.has("web")
	b.Eventually("no host to have an address", func() error {
		for _, address := range []string{"172.31.0.100", "fd31::100", "172.31.0.200", "172.31.0.101"} {
			if host := b.announcer(address); host != nil {
				return fmt.Errorf("%s is on %s", address, host.Name)
			}
		}
		return nil
	})
}
