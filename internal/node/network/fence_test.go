package network

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// withAddresses returns a node with these addresses.
func withAddresses(name string, annotations map[string]string, addresses ...corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Status: corev1.NodeStatus{Addresses: addresses}}
}

func TestNodeAddresses(t *testing.T) {
	got := nodeAddresses([]*corev1.Node{
		withAddresses("new", nil),
		withAddresses("plain", map[string]string{annotationIP: "192.0.2.2", annotationSource: "192.0.2.2"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "192.0.2.99"}),
		withAddresses("dual", map[string]string{annotationIP: "198.51.100.1", annotationIPv6: "2001:db8::2", annotationSource: "10.0.0.1,fd00::1"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}),
		withAddresses("wrong", map[string]string{annotationIP: "nonsense", annotationSource: ",", annotationIPv6: "::ffff:192.0.2.3"}),
	})
	var texts []string
	for _, address := range got {
		texts = append(texts, address.String())
	}
	if want := []string{"10.0.0.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "2001:db8::2", "fd00::1"}; !slices.Equal(texts, want) {
		t.Errorf("got %v, want %v", texts, want)
	}
}

func TestFenceRules(t *testing.T) {
	const loopback = `add rule inet kedge-network loopback iifname != "lo" ip daddr 127.0.0.0/8 drop`
	nodes := []*corev1.Node{withAddresses("a", map[string]string{annotationIP: "192.0.2.2", annotationIPv6: "2001:db8::2"})}
	for name, test := range map[string]struct {
		port                int
		pods, cluster, want []string
	}{
		"vxlan": {8472, []string{"10.42.0.0/24"}, []string{"10.42.0.0/16"}, []string{
			`add element inet kedge-network nodes { 192.0.2.2 }`,
			`add element inet kedge-network nodes6 { 2001:db8::2 }`,
			loopback,
			`add rule inet kedge-network vxlan-forward udp dport 8472 ip daddr @nodes ct status dnat drop`,
			`add rule inet kedge-network vxlan-forward udp dport 8472 ip daddr @nodes ip saddr 10.42.0.0/24 drop`,
			`add rule inet kedge-network vxlan-input udp dport 8472 ip saddr != @nodes drop`,
			`add rule inet kedge-network vxlan-mark meta oifkind "vxlan" meta mark set meta mark | 0x1000`,
			`add rule inet kedge-network vxlan-output udp dport 8472 ip daddr 10.42.0.0/16 accept`,
			`add rule inet kedge-network vxlan-output udp dport 8472 meta mark set meta mark & 0xffffefff`,
			`add rule inet kedge-network vxlan-output udp dport 8472 meta skuid >= 0 meta mark & 0x1000 == 0 drop`,
		}},
		"vxlan IPv6, with another port": {4789, []string{"fd42::/64"}, []string{"fd42::/56"}, []string{
			`add element inet kedge-network nodes { 192.0.2.2 }`,
			`add element inet kedge-network nodes6 { 2001:db8::2 }`,
			loopback,
			`add rule inet kedge-network vxlan-forward udp dport 4789 ip6 daddr @nodes6 ct status dnat drop`,
			`add rule inet kedge-network vxlan-forward udp dport 4789 ip6 daddr @nodes6 ip6 saddr fd42::/64 drop`,
			`add rule inet kedge-network vxlan-input udp dport 4789 ip6 saddr != @nodes6 drop`,
			`add rule inet kedge-network vxlan-mark meta oifkind "vxlan" meta mark set meta mark | 0x1000`,
			`add rule inet kedge-network vxlan-output udp dport 4789 ip6 daddr fd42::/56 accept`,
			`add rule inet kedge-network vxlan-output udp dport 4789 meta mark set meta mark & 0xffffefff`,
			`add rule inet kedge-network vxlan-output udp dport 4789 meta skuid >= 0 meta mark & 0x1000 == 0 drop`,
		}},
		"host-gw": {0, []string{"10.42.0.0/24"}, []string{"10.42.0.0/16"}, []string{loopback}},
	} {
		t.Run(name, func(t *testing.T) {
			pods, err := parseCIDRs(test.pods)
			if err != nil {
				t.Fatal(err)
			}
			cluster, err := parseCIDRs(test.cluster)
			if err != nil {
				t.Fatal(err)
			}
			fake := knftables.NewFake(masqueradeTable.family, masqueradeTable.name)
			f := &fence{nft: fake, port: test.port, pods: pods, cluster: cluster}
			for range 2 { // the second time it replaces its own rules
				f.set = false
				if err := f.update(t.Context(), nodes); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for line := range strings.Lines(fake.Dump()) {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "add rule") || strings.HasPrefix(line, "add element") {
					got = append(got, line)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestFenceIPTables writes the rules for a kernel without nftables, writes them again with another
// node, and removes them.
func TestFenceIPTables(t *testing.T) {
	host(t)
	testutil.Command(t, "mkdir -p /run/kedge")
	f, err := newFence(false, &config.VXLAN{VNI: 1, Port: 8472}, []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"192.0.2.2", "192.0.2.3"} {
		if err := f.update(t.Context(), []*corev1.Node{withAddresses("a", map[string]string{annotationIP: node})}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(testutil.Command(t, "iptables-save -t filter")) {
			if strings.HasPrefix(line, "-A") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		slices.Sort(got)
		want := []string{
			"-A FORWARD -p udp -m conntrack --ctstate DNAT -m udp --dport 8472 -j KEDGE-VXLAN-OUT",
			"-A FORWARD -s 10.42.0.0/24 -p udp -m udp --dport 8472 -j KEDGE-VXLAN-OUT",
			"-A INPUT -p udp -m udp --dport 8472 -j KEDGE-VXLAN-IN",
			"-A KEDGE-VXLAN-IN -j DROP",
			"-A KEDGE-VXLAN-IN -s " + node + "/32 -j RETURN",
			"-A KEDGE-VXLAN-OUT -d " + node + "/32 -j DROP",
			"-A KEDGE-VXLAN-OWN -d 10.42.0.0/16 -j RETURN",
			"-A KEDGE-VXLAN-OWN -m owner --uid-owner 0-4294967294 -m mark ! --mark 0x1000/0x1000 -j DROP",
			"-A OUTPUT -p udp -m udp --dport 8472 -j KEDGE-VXLAN-OWN",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if marks := testutil.Command(t, "iptables-save -t mangle"); strings.Count(marks, "-A POSTROUTING -o flannel.1 -j KEDGE-VXLAN-MARK") != 1 ||
			!strings.Contains(marks, "-A KEDGE-VXLAN-MARK -j MARK --set-xmark 0x1000/0x1000") {
			t.Errorf("got marks\n%s", marks)
		}
	}
	f.port, f.set = 4789, false
	if err := f.update(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if rules := testutil.Command(t, "iptables-save -t filter"); strings.Contains(rules, "8472") || strings.Count(rules, "--dport 4789") != 4 {
		t.Errorf("with another port: got rules\n%s", rules)
	}
	for range 2 {
		if err := removeIPTables(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// iptables makes these tables and does not remove them.
	defer testutil.Command(t, "nft delete table ip filter")
	defer testutil.Command(t, "nft delete table ip mangle")
	if rules := testutil.Command(t, "iptables-save"); strings.Contains(rules, "KEDGE") {
		t.Errorf("after the clean-up: got rules\n%s\nwant none of kedge", rules)
	}
	if _, err := os.Stat(fenceFile); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", fenceFile, err)
	}
}
