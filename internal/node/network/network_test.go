package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// host gives this namespace a link eth0 with two addresses, like a host.
func host(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, command := range []string{
		"mount -t tmpfs tmpfs /run",
		"ip link set lo up",
		"ip link add eth0 type veth peer name wire",
		"ip address add 192.0.2.1/24 dev eth0",
		"ip address add 2001:db8::1/64 dev eth0 nodad",
		"ip link set eth0 up",
		"ip link set wire up",
	} {
		testutil.Command(t, command)
	}
	t.Cleanup(func() {
		testutil.Command(t, "ip link delete eth0")
		testutil.Command(t, "umount /run")
	})
}

// eventually waits until done returns true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func exists(link string) bool {
	_, err := netlink.LinkByName(link)
	return err == nil
}

func mtu(t *testing.T, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().MTU
}

// start runs a Network until the returned function is called.
func start(t *testing.T, cfg Config, client kubernetes.Interface) (stop func()) {
	t.Helper()
	cfg.Informers = objectcache.Own(client)
	n := New(cfg)
	n.client = client
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- n.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("the component ended before it was ready: %v", err)
	}
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a cancelled network returned %v", err)
		}
	}
}

// usual are the VNI and the port without flannel-conf.
var usual = config.Default().Cluster.VXLAN

func TestNetwork(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, test := range []struct {
		name, backend string
		nodeIPs       []netip.Addr
		cluster, own  []string
		links         []string
		mtu           int  // with a link of 1500
		visible       bool // IPv6 addresses of pods are visible outside
	}{
		{"vxlan", "vxlan", []netip.Addr{v4}, []string{"10.42.0.0/16"}, []string{"10.42.0.0/24"}, []string{"flannel.1"}, 1450, false},
		{"vxlan dual-stack", "vxlan", []netip.Addr{v4, v6}, []string{"10.42.0.0/16", "fd42::/48"}, []string{"10.42.0.0/24", "fd42::/64"}, []string{"flannel.1", "flannel-v6.1"}, 1430, false},
		{"vxlan dual-stack without masquerading", "vxlan", []netip.Addr{v4, v6}, []string{"10.42.0.0/16", "fd42::/48"}, []string{"10.42.0.0/24", "fd42::/64"}, []string{"flannel.1", "flannel-v6.1"}, 1430, true},
		{"host-gw", "host-gw", []netip.Addr{v4}, []string{"10.42.0.0/16"}, []string{"10.42.0.0/24"}, nil, 1500, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			host(t)
			before := testutil.Command(t, "ip -brief link")
			peer := other("b", "10.42.1.0/24", "192.0.2.2")
			peer.Annotations[annotationType] = test.backend
			if len(test.cluster) == 2 {
				peer.Spec.PodCIDRs = append(peer.Spec.PodCIDRs, "fd42:0:0:1::/64")
				peer.Annotations[annotationIPv6] = "2001:db8::2"
				peer.Annotations[annotationDataV6] = `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e4"}`
			}
			// The controllers assign this node's pod CIDR later.
			client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}, peer)
			give := time.AfterFunc(100*time.Millisecond, func() {
				node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
				if err == nil {
					node.Spec.PodCIDRs = test.own
					_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Error(err)
				}
			})
			defer give.Stop()
			cfg := Config{
				NodeName: "a", NodeIPs: test.nodeIPs, ConfDir: t.TempDir(), Nftables: true,
				Cluster: config.Cluster{ClusterCIDR: test.cluster, FlannelBackend: test.backend, VXLAN: usual, FlannelIPv6Masq: !test.visible},
			}
			stop := start(t, cfg, client)

			for _, link := range test.links {
				if got := mtu(t, link); got != test.mtu {
					t.Errorf("%s has MTU %d, want %d", link, got, test.mtu)
				}
			}
			conf, err := os.ReadFile(filepath.Join(cfg.ConfDir, conflistName))
			if err != nil || !strings.Contains(string(conf), fmt.Sprintf(`"mtu": %d`, test.mtu)) {
				t.Errorf("want MTU %d in the CNI configuration (%v), got\n%s", test.mtu, err, conf)
			}
			for _, cidr := range test.own {
				wanted := !test.visible || !strings.Contains(cidr, ":")
				rules := testutil.Command(t, "nft list chain inet kedge-network postrouting")
				if strings.Contains(rules, "saddr "+cidr) != wanted {
					t.Errorf("pods of %s are masqueraded, want %t:\n%s", cidr, wanted, rules)
				}
			}
			node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil || node.Annotations[annotationIP] != "192.0.2.1" || node.Annotations[annotationType] != test.backend {
				t.Errorf("the node was not annotated (%v): %v", err, node.Annotations)
			}
			toPeer := func() bool { return strings.Contains(testutil.Command(t, "ip route"), "10.42.1.0/24 via") }
			eventually(t, "a route to the peer", toPeer)

			if test.backend == "vxlan" {
				testutil.Command(t, "ip link delete flannel.1")
				eventually(t, "the device's return", func() bool { return exists("flannel.1") && toPeer() })
			}

			stop()
			for _, link := range test.links {
				if !exists(link) {
					t.Errorf("stopping removed %s, which pods still use", link)
				}
			}
			if !toPeer() {
				t.Error("stopping removed the route to the peer")
			}

			// A start with the existing devices changes nothing.
			stop = start(t, cfg, client)
			stop()

			// Only the MTU changes, if the link has another one.
			testutil.Command(t, "ip link set eth0 mtu 9000")
			stop = start(t, cfg, client)
			stop()
			want := 9000 - (1500 - test.mtu)
			conf, err = os.ReadFile(filepath.Join(cfg.ConfDir, conflistName))
			if err != nil || !strings.Contains(string(conf), fmt.Sprintf(`"mtu": %d`, want)) {
				t.Errorf("want MTU %d in the CNI configuration (%v), got\n%s", want, err, conf)
			}
			for _, link := range test.links {
				if got := mtu(t, link); got != want {
					t.Errorf("%s has MTU %d after that of the link has become 9000, want %d", link, got, want)
				}
			}

			testutil.Command(t, "ip link add cni0 type bridge")
			testutil.Command(t, "ip link add veth0 type veth peer name veth1")
			testutil.Command(t, "ip link set veth0 master cni0")
			if err := Cleanup(t.Context(), []string{cfg.ConfDir}, cfg.Cluster.PodCIDRs()); err != nil {
				t.Errorf("clean up: %v", err)
			}
			if after := testutil.Command(t, "ip -brief link"); strings.Count(after, "\n") != strings.Count(before, "\n") {
				t.Errorf("clean-up left interfaces; before\n%s\nafter\n%s", before, after)
			}
			if rules := testutil.Command(t, "nft list ruleset"); rules != "" {
				t.Errorf("clean-up left rules:\n%s", rules)
			}
			if toPeer() {
				t.Error("clean-up left the route to the peer")
			}
			if entries, _ := os.ReadDir(cfg.ConfDir); len(entries) > 0 {
				t.Errorf("clean-up left %v", entries)
			}
			if err := Cleanup(t.Context(), []string{cfg.ConfDir}, nil); err != nil {
				t.Errorf("clean up again: %v", err)
			}
		})
	}
}

// TestMTU has an MTU of the user's, which later starts keep.
func TestMTU(t *testing.T) {
	host(t)
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}}})
	cfg := Config{
		NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: t.TempDir(), Nftables: true,
		Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, FlannelBackend: "vxlan", VXLAN: usual}, Backend: map[string]any{"MTU": 1400.0},
	}
	for range 2 {
		stop := start(t, cfg, client)
		stop()
		if got := mtu(t, "flannel.1"); got != 1350 {
			t.Errorf("flannel.1 has MTU %d, want 1350", got)
		}
	}
}

// TestOtherBackend changes the backend on a running host, as a user does with flannel-backend and a restart. The device of
// the earlier one does not stay, whose MTU could not be that of the new one.
func TestOtherBackend(t *testing.T) {
	host(t)
	peer := other("b", "10.42.1.0/24", "192.0.2.2")
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}}}, peer)
	for _, backend := range []struct{ name, route, flannels string }{
		{"vxlan", "10.42.1.0/24 via 10.42.1.0 dev flannel.1", "vxlan"},
		{"host-gw", "10.42.1.0/24 via 192.0.2.2 dev", "host-gw"},
		{"vxlan", "10.42.1.0/24 via 10.42.1.0 dev flannel.1", "vxlan"},
	} {
		peer.Annotations[annotationType] = backend.flannels
		if _, err := client.CoreV1().Nodes().Update(t.Context(), peer, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		stop := start(t, Config{
			NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: t.TempDir(), Nftables: true,
			Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, FlannelBackend: backend.name, VXLAN: usual},
		}, client)
		eventually(t, backend.name+"'s route to the peer", func() bool { return strings.Contains(testutil.Command(t, "ip route"), backend.route) })
		if exists("flannel.1") != (backend.name == "vxlan") {
			t.Errorf("with %s, the device of VXLAN is there: %v", backend.name, exists("flannel.1"))
		}
		stop()
	}
}

// TestVXLAN changes the VNI and the port, as a user does with flannel-conf on all servers and a
// restart. Nothing of the earlier ones stays, and a node that has them still is not reached.
func TestVXLAN(t *testing.T) {
	host(t)
	peer := other("b", "10.42.1.0/24", "192.0.2.2")
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}}}, peer)
	cfg := Config{
		NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: t.TempDir(), Nftables: true,
		Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, FlannelBackend: "vxlan", VXLAN: usual},
	}
	stop := start(t, cfg, client)
	eventually(t, "a route to the peer", func() bool { return strings.Contains(testutil.Command(t, "ip route"), "10.42.1.0/24 via") })
	stop()
	cfg.Cluster.VXLAN = config.VXLAN{VNI: 4096, Port: 4789}
	stop = start(t, cfg, client)
	if exists("flannel.1") || strings.Contains(testutil.Command(t, "ip route"), "10.42.1.0/24") {
		t.Error("the device of the earlier VNI is there, or the route to the peer with that VNI")
	}
	if about := testutil.Command(t, "ip -d link show flannel.4096"); !strings.Contains(about, "vxlan id 4096") || !strings.Contains(about, "dstport 4789") {
		t.Errorf("the device is\n%s", about)
	}
	if rules := testutil.Command(t, "nft list table inet kedge-network"); strings.Contains(rules, "8472") || !strings.Contains(rules, "udp dport 4789") {
		t.Errorf("the rules are\n%s", rules)
	}
	peer.Annotations[annotationData] = strings.Replace(peer.Annotations[annotationData], `"VNI":1`, `"VNI":4096`, 1)
	if _, err := client.CoreV1().Nodes().Update(t.Context(), peer, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a route to the peer that has changed too", func() bool {
		return strings.Contains(testutil.Command(t, "ip route"), "10.42.1.0/24 via 10.42.1.0 dev flannel.4096")
	})
	stop()
	if err := Cleanup(t.Context(), []string{cfg.ConfDir}, cfg.Cluster.PodCIDRs()); err != nil || exists("flannel.4096") {
		t.Errorf("clean up: %v, and flannel.4096 exists: %t", err, exists("flannel.4096"))
	}
}

func TestNetworkFollowsPodCIDR(t *testing.T) {
	host(t)
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}},
	})
	cfg := Config{
		NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: t.TempDir(), Nftables: true,
		Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, FlannelBackend: "vxlan", VXLAN: usual},
	}
	stop := start(t, cfg, client)
	defer stop()
	// The node is deleted and registers again.
	nodes := client.CoreV1().Nodes()
	if err := nodes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "2"},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.42.7.0/24"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new range and annotations", func() bool {
		conf, err := os.ReadFile(filepath.Join(cfg.ConfDir, conflistName))
		if err != nil || !strings.Contains(string(conf), "10.42.7.0/24") {
			return false
		}
		node, err := nodes.Get(t.Context(), "a", metav1.GetOptions{})
		return err == nil && node.Annotations[annotationIP] == "192.0.2.1"
	})
}

func TestNetworkNone(t *testing.T) {
	host(t)
	cfg := Config{NodeName: "a", ConfDir: t.TempDir(), Nftables: true, Cluster: config.Cluster{FlannelBackend: "none"}}
	if err := (conflist{}).write(cfg.ConfDir); err != nil {
		t.Fatal(err)
	}
	start(t, cfg, nil)()
	if entries, _ := os.ReadDir(cfg.ConfDir); len(entries) > 0 {
		t.Errorf("with another CNI: got %v in the folder of configurations, want nothing", entries)
	}
}

func TestNetworkRefuses(t *testing.T) {
	host(t)
	for name, test := range map[string]struct {
		backend, nodeIP, own, want string
	}{
		"address of no interface":  {"vxlan", "192.0.2.77", "10.42.0.0/24", "no interface has the node's address 192.0.2.77"},
		"range of another cluster": {"vxlan", "192.0.2.1", "10.99.0.0/24", "which is not in cluster-cidr 10.42.0.0/16"},
		"kernel without WireGuard": {"wireguard-native", "192.0.2.1", "10.42.0.0/24", "this kernel has no wireguard"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.backend == "wireguard-native" && exec.Command("ip", "link", "add", "flannel-wg", "type", "wireguard").Run() == nil {
				testutil.Command(t, "ip link delete flannel-wg")
				t.Skip("this kernel has it")
			}
			n := New(Config{
				NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr(test.nodeIP)}, ConfDir: t.TempDir(), Nftables: true,
				Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}, FlannelBackend: test.backend, VXLAN: usual},
			})
			n.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{test.own}}})
			n.cfg.Informers = objectcache.Own(n.client)
			err := n.Run(t.Context(), func() { t.Error("was ready") })
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}
