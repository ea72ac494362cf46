// Package network has pods of two nodes talk over every kind of connection that kedge offers:
// another interface, external addresses, both address families, and plain routes.
package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// reachEachOther checks that each of the pods answers the others at all its addresses, and sees
// their addresses.
func reachEachOther(c *cluster.Cluster, pods ...*corev1.Pod) {
	c.Helper()
	for _, from := range pods {
		for _, to := range pods {
			for i, address := range to.Status.PodIPs {
				want := fmt.Sprintf("hostname=%s\nclient=%s\n", to.Name, from.Status.PodIPs[i].IP)
				c.In(from.Name, fmt.Sprintf("%s to reach %s at %s with its own address", from.Name, to.Name, address.IP),
					func(output string) bool { return strings.HasPrefix(output, want) },
					"/testserver", "fetch", "http://"+net.JoinHostPort(address.IP, cluster.WebPort)+"/")
			}
		}
	}
}

// wantMTU checks the MTU of interfaces of a host and of a pod on it.
func wantMTU(c *cluster.Cluster, host *harness.Host, pod string, mtu int, names ...string) {
	c.Helper()
	for _, name := range names {
		got := run(c, host, "cat", "/sys/class/net/"+name+"/mtu")
		if got != strconv.Itoa(mtu) {
			c.Errorf("%s of %s has MTU %s, want %d", name, host.Name, got, mtu)
		}
	}
	c.In(pod, fmt.Sprintf("pod %s to have MTU %d", pod, mtu), func(output string) bool { return output == strconv.Itoa(mtu) },
		"/testserver", "mtu", "eth0")
}

// run runs a program on a host and returns its output.
func run(c *cluster.Cluster, host *harness.Host, args ...string) string {
	c.Helper()
	output, err := host.Command(c.Context(), args[0], args[1:]...).Output()
	if err != nil {
		c.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

// received returns how many bytes an interface of a host has received.
func received(c *cluster.Cluster, host *harness.Host, name string) int {
	c.Helper()
	bytes, err := strconv.Atoi(run(c, host, "cat", "/sys/class/net/"+name+"/statistics/rx_bytes"))
	if err != nil {
		c.Fatal(err)
	}
	return bytes
}

// TestFlannelInterface sends the pods' traffic over a second interface, and everything else over
// the first. The server's file sets the VNI and the port of all nodes.
func TestFlannelInterface(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first, second := cluster.NewHost(t, network, "server-1"), cluster.NewHost(t, network, "agent-1")
	harness.Cable(t, first, second)
	first.WriteFile("/etc/flannel.json", `{"Network": "10.42.0.0/16", "Backend": {"Type": "vxlan", "VNI": 4096, "Port": 4789}}`)
	server := first.StartServer(t, "--flannel-iface=eth1", "--flannel-conf=/etc/flannel.json")
	server.WaitReady()
	c := cluster.Of(t, server)
	second.StartAgent(t, server, "--flannel-iface=eth1").WaitReady()
	reachEachOther(c, c.RunWeb("here", first.Name), c.RunWeb("there", second.Name))
	wantMTU(c, second, "there", 1450, "flannel.4096", "cni0")
	if device := run(c, second, "ip", "-d", "link", "show", "flannel.4096"); !strings.Contains(device, "dstport 4789") {
		t.Errorf("the agent's device is\n%s", device)
	}

	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: sink}
spec:
  nodeName: ` + second.Name + `
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "` + image.TestserverName + `", args: [serve-measure, "9000"]}]
`)
	sink := net.JoinHostPort(c.Pod("sink").Status.PodIP, "9000")
	before := map[string]int{"eth0": received(c, second, "eth0"), "eth1": received(c, second, "eth1")}
	c.In("here", "megabytes to reach the other node", func(string) bool { return true }, "/testserver", "measure", sink, "0.5")
	const megabytes = 4 << 20 // more than the API sends in the meantime, less than the link carries in half a second
	if came := received(c, second, "eth1") - before["eth1"]; came < megabytes {
		t.Errorf("by eth1, which was named, came %d bytes", came)
	}
	if came := received(c, second, "eth0") - before["eth0"]; came > megabytes {
		t.Errorf("by eth0 came %d bytes", came)
	}
	node, err := c.Client.CoreV1().Nodes().Get(t.Context(), second.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("[{InternalIP %s} {Hostname %s}]", second.Address, second.Name); fmt.Sprint(node.Status.Addresses) != want {
		t.Errorf("the node has the addresses %v, want %s", node.Status.Addresses, want)
	}
}

// TestExternalIP has nodes reach each other's pods by addresses that the nodes themselves do not
// have. Users see these addresses.
func TestExternalIP(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first, second := cluster.NewHost(t, network, "server-1"), cluster.NewHost(t, network, "agent-1")
	ofFirst, ofSecond := harness.Cable(t, first, second)
	server := first.StartServer(t, "--flannel-external-ip", "--node-external-ip="+ofFirst.String())
	server.WaitReady()
	c := cluster.Of(t, server)
	agent := second.StartAgent(t, server)
	agent.WaitReady()

	wantAddresses := func(host *harness.Host, external string) {
		t.Helper()
		want := fmt.Sprintf("[{InternalIP %s}%s {Hostname %s}]", host.Address, external, host.Name)
		c.Eventually("node "+host.Name+" to have the addresses "+want, func() error {
			node, err := c.Client.CoreV1().Nodes().Get(t.Context(), host.Name, metav1.GetOptions{})
			if err == nil && (fmt.Sprint(node.Status.Addresses) != want || len(node.Spec.Taints) > 0) {
				err = fmt.Errorf("it has %v, and the taints %v", node.Status.Addresses, node.Spec.Taints)
			}
			return err
		})
	}
	external := func(address netip.Addr) string { return fmt.Sprintf(" {ExternalIP %s}", address) }
	wantAddresses(first, external(ofFirst))
	wantAddresses(second, "")
	if shown := c.Kubectl("get", "node", first.Name, "-o", "wide"); !strings.Contains(shown, ofFirst.String()) {
		t.Errorf("kubectl shows\n%s", shown)
	}

	t.Log("an existing node gets an external address")
	agent.Terminate()
	agent = second.StartAgent(t, server, "--node-external-ip="+ofSecond.String())
	agent.WaitReady()
	wantAddresses(second, external(ofSecond))
	here, there := c.RunWeb("here", first.Name), c.RunWeb("there", second.Name)
	reachEachOther(c, here, there)
	before := received(c, first, "eth1")
	reachEachOther(c, here, there)
	if received(c, first, "eth1") == before {
		t.Error("no packets came to the external address")
	}

	t.Log("the external address is removed again")
	agent.Terminate()
	agent = second.StartAgent(t, server)
	agent.WaitReady()
	wantAddresses(second, "")
	reachEachOther(c, here, there)

	t.Log("the external address stays when the kubelet writes the status")
	c.Kubectl("patch", "node", first.Name, "--subresource=status", "--patch", `{"status": {"nodeInfo": {"kernelVersion": "another"}}}`)
	c.Eventually("the kubelet to write the status", func() error {
		if version := c.Kubectl("get", "node", first.Name, "-o", "jsonpath={.status.nodeInfo.kernelVersion}"); version == "another" {
			return errors.New("it is as before")
		}
		return nil
	})
	wantAddresses(first, external(ofFirst))
}

// TestDualStack gives the pods of two nodes, and their Service, an address of each family.
func TestDualStack(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--cluster-cidr=10.42.0.0/16,fd00:42::/56", "--service-cidr=10.43.0.0/16,fd00:43::/112")
	agent := c.Join(network, "agent-1")
	pods := []*corev1.Pod{c.RunWeb("here", c.Server.Host.Name), c.RunWeb("there", agent.Host.Name)}
	for _, pod := range pods {
		if len(pod.Status.PodIPs) != 2 {
			t.Fatalf("pod %s has the addresses %v", pod.Name, pod.Status.PodIPs)
		}
	}
	reachEachOther(c, pods...)
	// 70 bytes are for the outer IPv6 header and VXLAN's header.
	wantMTU(c, c.Server.Host, "here", 1430, "flannel.1", "flannel-v6.1", "cni0")
	wantMTU(c, agent.Host, "there", 1430, "flannel.1", "flannel-v6.1", "cni0")

	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: ` + cluster.WebPort + `}]
`)
	service, err := c.Client.CoreV1().Services(cluster.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		for _, address := range service.Spec.ClusterIPs {
			c.Answers(pod.Name, "http://"+net.JoinHostPort(address, "80")+"/", "here", "there")
			c.In(pod.Name, "DNS to know "+address, func(output string) bool {
				return slices.Contains(strings.Fields(output), address)
			}, "/testserver", "lookup", "host", "web.default.svc.cluster.local")
		}
	}
}

// TestIPv6Only has two hosts without any IPv4 address but that of loopback. Pods reach each other, and a Service by its name.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	var hosts []*harness.Host
	for _, name := range []string{"server-1", "agent-1"} {
		host := cluster.NewHost(t, network, name)
		if output, err := host.Command(t.Context(), "ip", "-4", "address", "flush", "dev", "eth0").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		hosts = append(hosts, host)
	}
	server := hosts[0].StartServer(t, "--cluster-cidr=fd00:42::/56", "--service-cidr=fd00:43::/112")
	server.WaitReady()
	c := cluster.Of(t, server)
	agent := hosts[1].StartAgent(t, server, "--server=https://"+net.JoinHostPort(hosts[0].Address6.String(), "6443"))
	agent.WaitReady()
	pods := []*corev1.Pod{c.RunWeb("here", c.Server.Host.Name), c.RunWeb("there", agent.Host.Name)}
	reachEachOther(c, pods...)
	c.ServeWeb()
	for _, pod := range pods {
		if len(pod.Status.PodIPs) != 1 || !strings.Contains(pod.Status.PodIP, ":") {
			t.Errorf("pod %s has the addresses %v, want one of IPv6", pod.Name, pod.Status.PodIPs)
		}
		c.Answers(pod.Name, "http://web.default.svc.cluster.local/", "here", "there")
	}
}

// TestHostGateway has only routes between the nodes, and no tunnel.
func TestHostGateway(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--flannel-backend=host-gw")
	agent := c.Join(network, "agent-1")
	reachEachOther(c, c.RunWeb("here", c.Server.Host.Name), c.RunWeb("there", agent.Host.Name))
	wantMTU(c, agent.Host, "there", 1500, "cni0")
	c.ServeWeb()
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
	c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there")
	if links := run(c, agent.Host, "ls", "/sys/class/net"); strings.Contains(links, "flannel") {
		t.Errorf("there is a tunnel: %s", links)
	}
}
