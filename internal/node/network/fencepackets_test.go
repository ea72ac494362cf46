package network

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestFencePackets sends VXLAN packets to a node and through it. This network namespace is the node,
// with the addresses 192.0.2.1 and 10.42.0.1. There are namespaces of another node, of a host
// that is not a node, and of a pod.
func TestFencePackets(t *testing.T) {
	host(t)
	t.Cleanup(func() { testutil.Command(t, "umount /run/netns") }) // ip makes this folder a mount
	const inHere, vxlanPort = "", 8472
	namespaces := map[string]string{"fence-node": "192.0.2.2/24", "fence-host": "192.0.2.9/24", "fence-pod": "10.42.0.5/24"}
	setUp := []string{
		"ip link add lan type bridge", "ip link set lan up", "ip address flush dev eth0", "ip address add 192.0.2.1/24 dev lan",
		"ip link add pods type bridge", "ip link set pods up", "ip address add 10.42.0.1/24 dev pods",
		"sysctl -qw net.ipv4.ip_forward=1",
		"ip link add flannel.1 type vxlan id 1 local 192.0.2.1 dstport 8472 nolearning", "ip link set flannel.1 up",
		// The device sends packets for a pod to the other node.
		"ip address add 10.42.9.0/24 dev flannel.1", "ip neighbour add 10.42.9.2 lladdr 02:00:00:00:09:09 dev flannel.1",
		"bridge fdb add 02:00:00:00:09:09 dev flannel.1 dst 192.0.2.2",
	}
	for name, address := range namespaces {
		bridge, device := "lan", "to-"+strings.TrimPrefix(name, "fence-")
		if name == "fence-pod" {
			bridge = "pods"
		}
		setUp = append(setUp, "ip netns add "+name,
			"ip link add "+device+" type veth peer name eth0 netns "+name,
			"ip link set "+device+" master "+bridge, "ip link set "+device+" up",
			"ip -n "+name+" address add "+address+" dev eth0", "ip -n "+name+" link set eth0 up")
		t.Cleanup(func() {
			testutil.Command(t, "ip link delete "+device) // otherwise the kernel removes it some time later
			testutil.Command(t, "ip netns delete "+name)
		})
	}
	setUp = append(setUp,
		"ip -n fence-pod route add default via 10.42.0.1",
		"ip -n fence-node link add flannel.1 type vxlan id 1 local 192.0.2.2 dstport 8472 nolearning", "ip -n fence-node link set flannel.1 up",
		// These rules redirect as a Service with a NodePort does, and masquerade as for pods.
		"nft add table ip service", "nft add chain ip service in { type nat hook prerouting priority dstnat ; }",
		"nft add rule ip service in udp dport 30472 dnat to 192.0.2.2:8472",
		"nft add chain ip service out { type nat hook postrouting priority srcnat ; }", "nft add rule ip service out oifname lan masquerade",
	)
	t.Cleanup(func() {
		for _, command := range []string{"ip link delete lan", "ip link delete pods", "ip link delete flannel.1", "nft delete table ip service", "nft delete table inet kedge-network"} {
			testutil.Command(t, command)
		}
	})
	for _, command := range setUp {
		testutil.Command(t, command)
	}

	in := func(namespace, command string) string {
		t.Helper()
		if namespace != inHere {
			command = "ip netns exec " + namespace + " " + command
		}
		return testutil.Command(t, command)
	}
	// received returns how many packets VXLAN has unpacked.
	received := func(namespace string) int {
		t.Helper()
		fields := strings.Fields(in(namespace, "ip -s -o link show flannel.1"))
		for i, field := range fields {
			if field == "RX:" { // the headings, followed by the numbers of bytes and packets
				for j := i + 1; j < len(fields); j++ {
					if _, err := strconv.Atoi(fields[j]); err == nil {
						count, err := strconv.Atoi(fields[j+1])
						if err != nil {
							t.Fatal(err)
						}
						return count
					}
				}
			}
		}
		t.Fatalf("no count of packets in %q", fields)
		return 0
	}
	// The packet is VXLAN's header and a broadcast frame.
	packet := append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x09\x09\x08\x00")...)
	text := base64.StdEncoding.EncodeToString(append(packet, make([]byte, 40)...))
	// The kernel tells a process that its packet was dropped.
	script := t.TempDir() + "/send"
	if err := os.WriteFile(script, []byte("base64 -d <<<"+text+" >/dev/udp/$1/$2 || true"), 0o600); err != nil {
		t.Fatal(err)
	}
	send := func(from, to string, port int) { in(from, fmt.Sprintf("bash %s %s %d", script, to, port)) }

	attacks := []struct {
		name, from, to string
		port           int
		// at is the address at which the packet would arrive. honest nodes send there too.
		at, honest string
	}{
		{"a host that is no node", "fence-host", "192.0.2.1", vxlanPort, inHere, "fence-node"},
		{"a pod, to its node", "fence-pod", "10.42.0.1", vxlanPort, inHere, "fence-node"},
		{"a pod, to another node", "fence-pod", "192.0.2.2", vxlanPort, "fence-node", inHere},
		{"a host, by a NodePort", "fence-host", "192.0.2.1", 30472, "fence-node", inHere},
		{"a pod, by a NodePort", "fence-pod", "192.0.2.1", 30472, "fence-node", inHere},
		{"a process of the node", inHere, "192.0.2.2", vxlanPort, "fence-node", inHere},
	}
	for _, fenced := range []bool{false, true} {
		if fenced {
			f, err := newFence(true, &config.VXLAN{VNI: 1, Port: vxlanPort},
				[]netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")})
			if err == nil {
				err = f.update(t.Context(), []*corev1.Node{
					withAddresses("a", map[string]string{annotationIP: "192.0.2.1"}), withAddresses("b", map[string]string{annotationIP: "192.0.2.2"}),
				})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, attack := range attacks {
			before, want := received(attack.at), 2
			if fenced {
				want = 1
			}
			send(attack.from, attack.to, attack.port)
			// A process of the other node, which has no fence, or the device of this node.
			if attack.honest == inHere {
				send(inHere, "10.42.9.2", 9)
			} else {
				send(attack.honest, "192.0.2.1", vxlanPort)
			}
			eventually(t, attack.name+": the honest packet's arrival", func() bool { return received(attack.at) >= before+want })
			if got := received(attack.at) - before; got != want {
				t.Errorf("%s, fenced: %t: %d packets arrived, want %d", attack.name, fenced, got, want)
			}
		}
	}
	for sender, from := range map[string]string{"a pod": "fence-pod", "a process": inHere} {
		before := received("fence-node")
		send(from, "10.42.9.2", vxlanPort)
		eventually(t, "what "+sender+" sends to a pod's port of the same number", func() bool { return received("fence-node") == before+1 })
	}
}
