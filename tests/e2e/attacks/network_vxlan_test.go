package attacks

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// closedPort is a port on which no pod listens.
const closedPort = 9

// datagram returns an IPv4 packet that contains a datagram.
func datagram(from, to netip.AddrPort, data string) []byte {
	packet := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0}
	packet = append(append(packet, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(packet[2:], uint16(20+8+len(data)))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum>>16+sum&0xffff))
	packet = binary.BigEndian.AppendUint16(packet, from.Port())
	packet = binary.BigEndian.AppendUint16(packet, to.Port())
	packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(data)))
	return append(append(packet, 0, 0), data...) // without a checksum, which IPv4 allows
}

// frame returns an Ethernet frame that contains an IPv4 packet.
func frame(from, to net.HardwareAddr, packet []byte) []byte {
	return append(append(append(append([]byte{}, to...), from...), 8, 0), packet...)
}

// mac returns the hardware address of an interface of a host.
func mac(c *cluster.Cluster, host *harness.Host, name string) net.HardwareAddr {
	c.Helper()
	text, err := os.ReadFile(host.Path("/sys/class/net/" + name + "/address"))
	if err != nil {
		// /sys may be the machine's, so the host is asked.
		var output []byte
		output, err = host.Command(c.Context(), "cat", "/sys/class/net/"+name+"/address").Output()
		text = output
	}
	if err != nil {
		c.Fatal(err)
	}
	address, err := net.ParseMAC(strings.TrimSpace(string(text)))
	if err != nil {
		c.Fatal(err)
	}
	return address
}

// processOf returns the ID of a pod's first process on its host.
func processOf(c *cluster.Cluster, host *harness.Host, pod string) string {
	c.Helper()
	id, err := host.Kedge(c.Context(), "crictl", "ps", "--quiet", "--label", "io.kubernetes.pod.name="+pod).Output()
	if err != nil {
		c.Fatal(err)
	}
	output, err := host.Kedge(c.Context(), "crictl", "inspect", strings.TrimSpace(string(id))).Output()
	if err != nil {
		c.Fatal(err)
	}
	var about struct{ Info struct{ Pid int } }
	if err := json.Unmarshal(output, &about); err != nil || about.Info.Pid == 0 {
		c.Fatalf("crictl inspect: %v\n%s", err, output)
	}
	return strconv.Itoa(about.Info.Pid)
}

// refusedDatagrams returns how many datagrams a pod has received for ports on which it does not listen.
func refusedDatagrams(c *cluster.Cluster, host *harness.Host, process string) int {
	c.Helper()
	text, err := os.ReadFile(host.Path("/proc/" + process + "/net/snmp"))
	if err != nil {
		c.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "NoPorts" {
				count, err := strconv.Atoi(fields[i])
				if err != nil {
					c.Fatal(err)
				}
				return count
			}
		}
	}
	c.Fatalf("no count of datagrams in\n%s", text)
	return 0
}

// TestVXLANInjection sends VXLAN packets to a node from hosts that are not nodes, by every way that
// leads there, to get a packet with a forged address into a pod.
func TestVXLANInjection(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	server := c.Server.Host
	agent := c.Join(network, "agent-1").Host
	outsider := network.NewHost(t, "outsider")
	victim, pod := c.RunWeb("victim", server.Name), c.RunWeb("attacker", agent.Name)
	process := processOf(c, server, "victim")

	forged := netip.AddrPortFrom(netip.MustParseAddr(pod.Status.PodIP).Next(), 5000)
	packet := datagram(forged, netip.AddrPortFrom(netip.MustParseAddr(victim.Status.PodIP), closedPort), "injected")
	// This is VXLAN's header with flannel's network number, 1.
	packet = append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, frame(net.HardwareAddr{2, 0, 0, 0, 9, 9}, mac(c, server, "flannel.1"), packet)...)
	text := base64.StdEncoding.EncodeToString(packet)
	send := func(from *harness.Host, to string, around ...string) {
		t.Helper()
		host, port, err := net.SplitHostPort(to)
		if err != nil {
			t.Fatal(err)
		}
		// The kernel tells a process of a node that its packet was dropped.
		args := append(around, "bash", "-c", "for i in 1 2 3; do base64 -d <<<"+text+" >/dev/udp/"+host+"/"+port+" || true; done")
		if output, err := from.Command(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("send from %s to %s: %v\n%s", from.Name, to, err, output)
		}
	}

	// A user of a namespace can make a Service for any port of a node.
	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: tunnel}
spec:
  type: NodePort
  ports: [{port: 9999, protocol: UDP, nodePort: 30472}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: tunnel, labels: {kubernetes.io/service-name: tunnel}}
addressType: IPv4
ports: [{port: 8472, protocol: UDP, name: ""}]
endpoints: [{addresses: ["` + server.Address.String() + `"]}]
`)
	service := c.Kubectl("get", "service", "tunnel", "-o", "jsonpath={.spec.clusterIP}")
	c.Eventually("the Service to lead somewhere", func() error {
		rules, err := agent.Command(t.Context(), "/run/kedge/bin/nft", "list", "table", "ip", "kube-proxy").CombinedOutput()
		if err == nil && !strings.Contains(string(rules), "8472") {
			err = fmt.Errorf("it is not in\n%s", rules)
		}
		return err
	})
	// The kernel of a node sends what the node's processes send to pods.
	honest := func() {
		t.Helper()
		command := fmt.Sprintf("for i in 1 2 3; do echo honest >/dev/udp/%s/%d; done", victim.Status.PodIP, closedPort)
		if output, err := agent.Command(t.Context(), "bash", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("send to a pod: %v\n%s", err, output)
		}
	}
	inPod := []string{"nsenter", "--net=/proc/" + processOf(c, agent, "attacker") + "/ns/net"}
	node := net.JoinHostPort(server.Address.String(), "8472")
	before := refusedDatagrams(c, server, process)
	for _, attack := range []struct {
		name   string
		from   *harness.Host
		to     string
		around []string
	}{
		{"a host that is no node", outsider, node, nil},
		{"a pod of another node", agent, node, inPod},
		{"a pod, by a Service", agent, net.JoinHostPort(service, "9999"), inPod},
		{"a process of another node", agent, node, nil},
		{"a host that is no node, by a NodePort", outsider, net.JoinHostPort(agent.Address.String(), "30472"), nil},
	} {
		send(attack.from, attack.to, attack.around...)
		// A node's own packet arrives, so earlier packets would have arrived too.
		honest()
		count := before
		c.Eventually("the node's own packets to arrive", func() error {
			if count = refusedDatagrams(c, server, process); count < before+3 {
				return fmt.Errorf("the pod received %d datagrams", count-before)
			}
			return nil
		})
		if count != before+3 {
			t.Errorf("%s got %d packets into a pod of another node", attack.name, count-before-3)
		}
		before = count
	}
	c.Answers("attacker", "http://"+net.JoinHostPort(victim.Status.PodIP, cluster.WebPort)+"/", "victim")
	c.Answers("victim", "http://"+net.JoinHostPort(pod.Status.PodIP, cluster.WebPort)+"/", "attacker")

	t.Log("a deleted node is not a node any more, and root on it can remove its own rules")
	if output, err := agent.Command(t.Context(), "/run/kedge/bin/nft", "flush", "chain", "inet", "kedge-network", "vxlan-output").CombinedOutput(); err != nil {
		t.Fatalf("remove the rules: %v\n%s", err, output)
	}
	before = refusedDatagrams(c, server, process)
	send(agent, node)
	c.Eventually("packets of root on a node to arrive", func() error {
		if count := refusedDatagrams(c, server, process); count != before+3 {
			return fmt.Errorf("the pod received %d datagrams", count-before)
		}
		return nil
	})
	c.Kubectl("delete", "node", agent.Name)
	c.Eventually("its packets to be dropped", func() error {
		before := refusedDatagrams(c, server, process)
		send(agent, node)
		time.Sleep(100 * time.Millisecond) // nothing says that a packet was dropped
		if count := refusedDatagrams(c, server, process); count != before {
			return fmt.Errorf("%d more arrived", count-before)
		}
		return nil
	})
}
