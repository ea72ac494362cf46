// Package loadbalancer tests Services of type LoadBalancer and the address of the control plane, over
// hosts of their own and a client outside of the cluster.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	t.Parallel()
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

// TestExternalAddress has a node behind a router that translates an external address, which the host
// does not have, into the node's own.
func TestExternalAddress(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	b := &balanced{Cluster: cluster.Start(t, network, "--node-external-ip=203.0.113.10"), client: network.NewHost(t, "client")}
	b.RunWeb("web-1", b.Server.Host.Name)
	b.serve("web", 80, "")
	b.has("web", "203.0.113.10")
	b.reach(b.Server.Host.Address.String(), 80, "hostname=web-1")
}
