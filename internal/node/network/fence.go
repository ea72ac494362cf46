package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// fenceFile exists if iptables may have rules of the fence. It has the port that they are for,
	// or nothing for olderPort. A reboot removes the file and the rules.
	fenceFile = datadir.RunDir + "/network-iptables"
	olderPort = "8472"
)

// The chains of the fence, in masqueradeTable or of iptables.
const (
	loopbackChain = "loopback"
	inputChain    = "vxlan-input"
	forwardChain  = "vxlan-forward"

	iptablesInput   = "KEDGE-VXLAN-IN"
	iptablesForward = "KEDGE-VXLAN-OUT"
)

// fence is the packet filter around the pods' network. The node treats VXLAN packets as if a pod had
// sent them, so the fence accepts them only from addresses of nodes. It also keeps nodes from
// sending VXLAN packets for others: it does not forward packets of pods to a node's VXLAN port,
// which would get the address of their node, nor packets that a Service has redirected there. A host
// beside the nodes can still forge their addresses, because VXLAN has no signatures. The backend
// wireguard-native has signatures.
//
// With nftables the fence also drops packets for 127.0.0.0/8 from other interfaces. Host ports need a
// kernel setting (route_localnet) that makes a node accept such packets. With iptables kube-proxy has
// a rule against them (KUBE-FIREWALL).
type fence struct {
	// nft is nil without nftables.
	nft knftables.Interface
	// port is the UDP port of VXLAN, or 0 if the backend is another one.
	port int
	// pods are this node's pod CIDRs.
	pods []netip.Prefix
	// nodes are the addresses in the kernel's rules, sorted. set is true if there are rules.
	nodes []netip.Addr
	set   bool
}

func newFence(nftables bool, port int, pods []netip.Prefix) (*fence, error) {
	f := &fence{port: port, pods: pods}
	if !nftables {
		return f, nil
	}
	var err error
	if f.nft, err = knftables.New(masqueradeTable.family, masqueradeTable.name); err != nil {
		return nil, fmt.Errorf("use nftables: %w", err)
	}
	return f, nil
}

// update brings the rules up to date with the nodes. It writes to the kernel only if something has
// changed.
func (f *fence) update(ctx context.Context, nodes []*corev1.Node) error {
	var addresses []netip.Addr
	if f.port != 0 {
		addresses = nodeAddresses(nodes)
	}
	if f.set && slices.Equal(f.nodes, addresses) {
		return nil
	}
	var err error
	if f.nft != nil {
		err = f.nft.Run(ctx, f.transaction(addresses))
	} else {
		err = f.iptables(ctx, addresses)
	}
	if err != nil {
		return fmt.Errorf("write the firewall rules for VXLAN packets: %w", err)
	}
	f.nodes, f.set = addresses, true
	return nil
}

// nodeAddresses returns the sorted addresses from which nodes may send: those at which other nodes
// reach them, those of their devices, and those in their status.
func nodeAddresses(nodes []*corev1.Node) []netip.Addr {
	var addresses []netip.Addr
	add := func(text string) {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap().WithZone(""))
		}
	}
	for _, node := range nodes {
		add(node.Annotations[annotationIP])
		add(node.Annotations[annotationIPv6])
		for source := range strings.SplitSeq(node.Annotations[annotationSource], ",") {
			add(source)
		}
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP || address.Type == corev1.NodeExternalIP {
				add(address.Address)
			}
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// transaction returns the whole fence, which replaces an earlier one.
func (f *fence) transaction(nodes []netip.Addr) *knftables.Transaction {
	tx := f.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	// This is before connection tracking, and so before any redirection.
	addChain(tx, loopbackChain, knftables.PreroutingHook, knftables.RawPriority)
	tx.Add(&knftables.Rule{Chain: loopbackChain, Rule: `iifname != "lo" ip daddr 127.0.0.0/8 drop`})
	// This is before the host's own filter, so the host's rules cannot accept these packets first.
	addChain(tx, inputChain, knftables.InputHook, knftables.FilterPriority+"-10")
	addChain(tx, forwardChain, knftables.ForwardHook, knftables.FilterPriority+"-10")
	for _, family := range []struct{ set, kind, protocol string }{{"nodes", "ipv4_addr", "ip"}, {"nodes6", "ipv6_addr", "ip6"}} {
		set := &knftables.Set{Name: family.set, Type: family.kind, Comment: knftables.PtrTo("addresses of kedge's nodes")}
		tx.Add(set)
		tx.Flush(set)
		is4 := family.protocol == "ip"
		for _, node := range nodes {
			if node.Is4() == is4 {
				tx.Add(&knftables.Element{Set: family.set, Key: []string{node.String()}})
			}
		}
		for _, own := range f.pods {
			if f.port == 0 || own.Addr().Is4() != is4 {
				continue
			}
			tx.Add(&knftables.Rule{Chain: inputChain, Rule: knftables.Concat("udp dport", f.port, family.protocol, "saddr != @"+family.set, "drop")})
			to := knftables.Concat("udp dport", f.port, family.protocol, "daddr @"+family.set)
			tx.Add(&knftables.Rule{Chain: forwardChain, Rule: knftables.Concat(to, family.protocol, "saddr", own, "drop")})
			tx.Add(&knftables.Rule{Chain: forwardChain, Rule: knftables.Concat(to, "ct status dnat drop")})
		}
	}
	return tx
}

// addChain adds a chain and removes its rules.
func addChain(tx *knftables.Transaction, name string, hook knftables.BaseChainHook, priority knftables.BaseChainPriority) {
	tx.Add(&knftables.Chain{
		Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(priority),
	})
	tx.Flush(&knftables.Chain{Name: name})
}

// iptables is update for a kernel without nftables. It writes only the rules for VXLAN, with a list of
// addresses for each family.
func (f *fence) iptables(ctx context.Context, nodes []netip.Addr) error {
	if f.port == 0 {
		return removeIPTables(ctx)
	}
	port := strconv.Itoa(f.port)
	if before, err := os.ReadFile(fenceFile); err == nil && cmp.Or(string(before), olderPort) != port {
		if err := removeIPTables(ctx); err != nil {
			return err
		}
	}
	if err := os.WriteFile(fenceFile, []byte(port), 0o600); err != nil {
		return err
	}
	for _, own := range f.pods {
		program, bits := "iptables", 32
		if own.Addr().Is6() {
			program, bits = "ip6tables", 128
		}
		var in, out strings.Builder
		for _, node := range nodes {
			if node.Is4() == own.Addr().Is4() {
				fmt.Fprintf(&in, "-A %s -s %s/%d -j RETURN\n", iptablesInput, node, bits)
				fmt.Fprintf(&out, "-A %s -d %s/%d -j DROP\n", iptablesForward, node, bits)
			}
		}
		restore := exec.CommandContext(ctx, program+"-restore", "--noflush", "--wait=10")
		restore.Stdin = strings.NewReader(fmt.Sprintf("*filter\n:%[1]s - [0:0]\n:%[2]s - [0:0]\n%[3]s-A %[1]s -j DROP\n%[4]sCOMMIT\n",
			iptablesInput, iptablesForward, in.String(), out.String()))
		if output, err := restore.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", program+"-restore", err, strings.TrimSpace(string(output)))
		}
		for _, jump := range iptablesJumps(own, port) {
			if iptables(ctx, program, "-C", jump) == nil {
				continue
			}
			if err := iptables(ctx, program, "-I", jump); err != nil {
				return err
			}
		}
	}
	return nil
}

// iptablesJumps returns the rules that jump to the chains of the fence, for packets to a UDP port.
func iptablesJumps(pods netip.Prefix, port string) [][]string {
	return [][]string{
		{"INPUT", "-p", "udp", "--dport", port, "-j", iptablesInput},
		{"FORWARD", "-s", pods.String(), "-p", "udp", "--dport", port, "-j", iptablesForward},
		{"FORWARD", "-m", "conntrack", "--ctstate", "DNAT", "-p", "udp", "--dport", port, "-j", iptablesForward},
	}
}

// iptables applies an operation such as -I or -D to a rule of the table filter.
func iptables(ctx context.Context, program, what string, rule []string) error {
	output, err := exec.CommandContext(ctx, program, append([]string{"--wait=10", what}, rule...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s %s: %w: %s", program, what, strings.Join(rule, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// removeIPTables removes the fence from iptables if there is one. It asks iptables only then, because
// asking loads the kernel's modules.
func removeIPTables(ctx context.Context) error {
	if _, err := os.Stat(fenceFile); err != nil {
		return nil
	}
	var faults []error
	for _, program := range []string{"iptables", "ip6tables"} {
		rules, err := exec.CommandContext(ctx, program+"-save", "-t", "filter").Output()
		if err != nil {
			faults = append(faults, fmt.Errorf("%s-save: %w", program, err))
			continue
		}
		for line := range strings.Lines(string(rules)) {
			rule := strings.Fields(line)
			// The jumps come first, because iptables-save lists them before the rules of the chains.
			if len(rule) > 2 && rule[0] == "-A" && (rule[1] == "INPUT" || rule[1] == "FORWARD") && slices.Contains([]string{iptablesInput, iptablesForward}, rule[len(rule)-1]) {
				faults = append(faults, iptables(ctx, program, "-D", rule[1:]))
			}
		}
		for _, chain := range []string{iptablesInput, iptablesForward} {
			if strings.Contains(string(rules), ":"+chain+" ") {
				faults = append(faults, iptables(ctx, program, "-F", []string{chain}), iptables(ctx, program, "-X", []string{chain}))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("remove the firewall rules for VXLAN packets: %w", err)
	}
	return os.Remove(fenceFile)
}
