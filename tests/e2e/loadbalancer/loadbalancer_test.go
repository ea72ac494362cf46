// Package loadbalancer tests Services of type LoadBalancer and the address of the control plane, over
// hosts of their own and a client outside of the cluster.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// balanced is a cluster of a server and two agents, with a client beside it.
type balanced struct {
	*cluster.Cluster
	agents []*harness.Agent
	hosts  []*harness.Host // the server's, and the agents'
	client *harness.Host
}

func start(t *testing.T, args ...string) *balanced {
	t.Helper()
	harness.Require(t)
	network := harness.NewNetwork(t)
	b := &balanced{Cluster: cluster.Start(t, network, args...)}
	b.hosts = []*harness.Host{b.Server.Host}
	for i := range 2 {
		agent := b.Join(network, fmt.Sprint("agent-", i+1))
		b.agents, b.hosts = append(b.agents, agent), append(b.hosts, agent.Host)
	}
	b.client = network.NewHost(t, "client")
	return b
}

// serve makes a Service of type LoadBalancer for the pods of RunWeb. more are lines of its spec.
func (b *balanced) serve(name string, port int, annotations string, more ...string) {
	b.Helper()
	b.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {%s}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: %d, targetPort: %s}]
  %s
`, name, annotations, port, cluster.WebPort, strings.Join(more, "\n  ")))
}

// service returns a Service.
func (b *balanced) service(name string) *corev1.Service {
	b.Helper()
	service, err := b.Client.CoreV1().Services(cluster.Namespace).Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return service
}

// ingress returns the addresses in the status of a Service.
func (b *balanced) ingress(name string) []string {
	b.Helper()
	var addresses []string
	for _, ingress := range b.service(name).Status.LoadBalancer.Ingress {
		addresses = append(addresses, ingress.IP)
	}
	slices.Sort(addresses)
	return addresses
}

// has waits until a Service has exactly these addresses.
func (b *balanced) has(name string, want ...string) {
	b.Helper()
	slices.Sort(want)
	b.Eventually(fmt.Sprintf("Service %s to have the addresses %v", name, want), func() error {
		if got := b.ingress(name); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// of returns the addresses of hosts.
func of(hosts ...*harness.Host) (addresses []string) {
	for _, host := range hosts {
		addresses = append(addresses, host.Address.String())
	}
	return addresses
}

// reach waits until the client gets an answer with all words at HOST:PORT.
func (b *balanced) reach(address string, port int, words ...string) {
	b.Helper()
	target := net.JoinHostPort(address, fmt.Sprint(port))
	b.Eventually(fmt.Sprintf("the client to get %q from %s", words, target), func() error {
		answer, err := b.client.Get(target)
		if err == nil && slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(answer, word) }) {
			err = fmt.Errorf("the answer is %q", answer)
		}
		return err
	})
}

// unreachable waits until the client gets no connection.
func (b *balanced) unreachable(address string, port int) {
	b.Helper()
	target := net.JoinHostPort(address, fmt.Sprint(port))
	b.Eventually("the client to get no connection to "+target, func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
		defer cancel()
		conn, err := b.client.DialContext(ctx, "tcp", target)
		if err == nil {
			conn.Close()
			return errors.New("it got one")
		}
		return nil
	})
}

// TestNodes gives Services the addresses of nodes.
func TestNodes(t *testing.T) {
	b := start(t)
	b.RunWeb("web-1", b.hosts[1].Name)
	b.RunWeb("web-2", b.hosts[2].Name)
	client := b.client.Address.String()

	t.Log("every node has the Service")
	b.serve("web", 80, "")
	b.has("web", of(b.hosts...)...)
	for _, ingress := range b.service("web").Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode != corev1.LoadBalancerIPModeProxy {
			t.Errorf("the mode of %s is %v", ingress.IP, ingress.IPMode)
		}
	}
	for _, host := range b.hosts {
		b.reach(host.Address.String(), 80, "hostname=web-")
	}

	t.Log("a younger Service gets no address with the same port")
	b.serve("late", 80, "")
	b.Told(cluster.Namespace, "late", "80/tcp", "default/web")
	b.has("late")

	t.Log("the port of a process, of kedge, and of a NodePort")
	listener := b.hosts[1].Listen(":8081")
	b.serve("busy", 8081, "")
	b.Told(cluster.Namespace, "busy", "8081/tcp", "taken", b.hosts[1].Name)
	b.has("busy", of(b.hosts[0], b.hosts[2])...)
	b.serve("kubelet", 10250, "")
	b.Told(cluster.Namespace, "kubelet", "10250/tcp", "kubelet")
	b.has("kubelet")
	b.serve("api", 6443, "")
	b.Told(cluster.Namespace, "api", "6443/tcp", "the API", b.hosts[0].Name)
	b.has("api", of(b.hosts[1:]...)...)
	b.serve("nodeport", 30999, "")
	b.Told(cluster.Namespace, "nodeport", "30000-32767")
	b.has("nodeport")
	listener.Close()
	b.has("busy", of(b.hosts...)...)

	t.Log("Local keeps the client's address, and follows the endpoints")
	b.serve("local", 82, "", "externalTrafficPolicy: Local")
	b.has("local", of(b.hosts[1:]...)...)
	b.reach(b.hosts[1].Address.String(), 82, "hostname=web-1", "client="+client+"\n")
	b.reach(b.hosts[2].Address.String(), 82, "hostname=web-2", "client="+client+"\n")
	b.Kubectl("delete", "pod", "web-2")
	b.has("local", of(b.hosts[1])...)

	t.Log("source ranges, and no NodePorts")
	b.serve("ranges", 83, "", "allocateLoadBalancerNodePorts: false", "loadBalancerSourceRanges: ["+client+"/32]")
	b.has("ranges", of(b.hosts...)...)
	b.reach(b.hosts[1].Address.String(), 83, "hostname=web-1")
	if port := b.service("ranges").Spec.Ports[0].NodePort; port != 0 {
		t.Errorf("it has the NodePort %d", port)
	}
	b.Kubectl("patch", "service", "ranges", "--patch", `{"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}`)
	b.unreachable(b.hosts[1].Address.String(), 83)

	t.Log("labels choose the nodes, and other classes are left alone")
	b.Kubectl("label", "node", b.hosts[2].Name, "svccontroller.k3s.cattle.io/enablelb=true")
	b.has("web", of(b.hosts[2])...)
	b.Kubectl("label", "node", b.hosts[2].Name, "svccontroller.k3s.cattle.io/enablelb-")
	b.Kubectl("label", "node", b.hosts[2].Name, "node.kubernetes.io/exclude-from-external-load-balancers=")
	b.has("web", of(b.hosts[:2]...)...)
	b.Kubectl("label", "node", b.hosts[2].Name, "node.kubernetes.io/exclude-from-external-load-balancers-")
	b.has("web", of(b.hosts...)...)
	b.serve("foreign", 84, "", "loadBalancerClass: example.com/other")

	t.Log("the first comer leaves, and the second gets the port")
	b.Kubectl("patch", "service", "web", "--patch", `{"spec": {"type": "ClusterIP"}}`)
	b.has("web")
	b.has("late", of(b.hosts...)...)
	// The API itself clears the addresses.
	b.Eventually("the Service to have no conditions", func() error {
		if conditions := b.service("web").Status.Conditions; len(conditions) > 0 {
			return fmt.Errorf("it has %v", conditions)
		}
		return nil
	})

	t.Log("a node dies")
	b.agents[1].Host.CutLink()
	began := time.Now()
	b.has("late", of(b.hosts[:2]...)...)
	t.Logf("the address left the status after %s", time.Since(began).Round(100*time.Millisecond))
	b.agents[1].Host.HealLink()
	b.has("late", of(b.hosts...)...)
	b.has("foreign")

	t.Log("servicelb is disabled, and the agents run on")
	b.Server.Terminate()
	server := b.Server.Host.StartServer(t, "--disable=servicelb")
	server.WaitReady()
	b.Server, b.Client = server, server.Client()
	for _, name := range []string{"late", "local", "ranges", "busy"} {
		b.has(name)
	}
	b.unreachable(b.hosts[1].Address.String(), 80)
	b.Eventually("the nodes to have no reports", func() error {
		if text := b.Kubectl("get", "nodes", "-o", "yaml"); strings.Contains(text, "loadbalancer.kedge.dev") {
			return errors.New(text)
		}
		return nil
	})
}

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

// vip is the address of the control plane in TestVIP.
var vip = netip.MustParseAddr("172.31.0.150")

// TestVIP has three servers answer at one address, and kills the one that has it.
func TestVIP(t *testing.T) {
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
