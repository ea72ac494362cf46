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

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
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
	outputChain   = "vxlan-output"
	markChain     = "vxlan-mark"

	iptablesInput   = "KEDGE-VXLAN-IN"
	iptablesForward = "KEDGE-VXLAN-OUT"
	iptablesOutput  = "KEDGE-VXLAN-OWN"
	iptablesMark    = "KEDGE-VXLAN-MARK"
)

// The bit of a packet's mark that says that a VXLAN device of the kernel has taken the packet, and all
// other bits. kube-proxy has the bits 0x4000 and 0x8000, and the portmap plugin has 0x2000.
const (
	takenMark  = "0x1000"
	otherMarks = "0xffffefff"
)

// fence is the packet filter around the pods' network. The node treats VXLAN packets as if a pod had
// sent them, so the fence accepts them only from addresses of nodes. It also keeps nodes from
// sending VXLAN packets for others: it does not forward packets of pods to a node's VXLAN port,
// which would get the address of their node, nor packets that a Service has redirected there. A host
// beside the nodes can still forge their addresses, because VXLAN has no signatures. The backend
// wireguard-native has signatures.
//
// Processes of the node cannot send VXLAN packets either, except to pods. Some processes, such as the
// gateway, send what others tell them, and other nodes would trust it as this node's. A mark tells the kernel's
// own packets apart: a packet that goes into a VXLAN device is marked there, and the kernel keeps the mark
// when it wraps the packet. The owner alone does not tell, because a wrapped packet has the owner of what
// is inside. A packet without an owner passes, because it comes from a pod or from a bridge.
//
// With nftables the fence also drops packets for 127.0.0.0/8 from other interfaces. Host ports need a
// kernel setting (route_localnet) that makes a node accept such packets. With iptables kube-proxy has
// a rule against them (KUBE-FIREWALL).
type fence struct {
	// nft is nil without nftables.
	nft knftables.Interface
	// port is the UDP port of VXLAN, or 0 if the backend is another one.
	port int
	// pods are this node's pod CIDRs, and cluster are those of the cluster.
	pods, cluster []netip.Prefix
	// devices are the VXLAN devices for IPv4 and for IPv6.
	devices [2]string
	// nodes are the addresses in the kernel's rules, sorted. set is true if there are rules.
	nodes []netip.Addr
	set   bool
}

// newFence makes a fence. vxlan is nil if the backend is another one.
func newFence(nftables bool, vxlan *config.VXLAN, pods, cluster []netip.Prefix) (*fence, error) {
	f := &fence{pods: pods, cluster: cluster}
	if vxlan != nil {
		f.port = vxlan.Port
		f.devices[0], f.devices[1] = vxlanDevices(vxlan.VNI)
	}
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
		for _, address := range nodeobject.Addresses(node, corev1.NodeInternalIP, corev1.NodeExternalIP) {
			addresses = append(addresses, address.WithZone(""))
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
	f.own(tx)
	return tx
}

// own adds what keeps processes of the node from sending VXLAN packets.
func (f *fence) own(tx *knftables.Transaction) {
	addChain(tx, outputChain, knftables.OutputHook, knftables.FilterPriority+"-10")
	// Nobody reads the mark of a packet that leaves for the VXLAN device after this.
	addChain(tx, markChain, knftables.PostroutingHook, knftables.SNATPriority+"+100")
	if f.port == 0 {
		return
	}
	tx.Add(&knftables.Rule{Chain: markChain, Rule: `meta oifkind "vxlan" meta mark set meta mark | ` + takenMark})
	port := knftables.Concat("udp dport", f.port)
	for _, pods := range f.cluster {
		family := "ip"
		if pods.Addr().Is6() {
			family = "ip6"
		}
		tx.Add(&knftables.Rule{Chain: outputChain, Rule: knftables.Concat(port, family, "daddr", pods, "accept")})
	}
	tx.Add(&knftables.Rule{Chain: outputChain, Rule: knftables.Concat(port, "meta skuid >= 0 meta mark &", takenMark, "== 0 drop")})
	tx.Add(&knftables.Rule{Chain: outputChain, Rule: knftables.Concat(port, "meta mark set meta mark &", otherMarks)})
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
		program, bits, device := "iptables", 32, f.devices[0]
		if own.Addr().Is6() {
			program, bits, device = "ip6tables", 128, f.devices[1]
		}
		var in, out, pods strings.Builder
		for _, cidr := range f.cluster {
			if cidr.Addr().Is4() == own.Addr().Is4() {
				fmt.Fprintf(&pods, "-A %s -d %s -j RETURN\n", iptablesOutput, cidr)
			}
		}
		for _, node := range nodes {
			if node.Is4() == own.Addr().Is4() {
				fmt.Fprintf(&in, "-A %s -s %s/%d -j RETURN\n", iptablesInput, node, bits)
				fmt.Fprintf(&out, "-A %s -d %s/%d -j DROP\n", iptablesForward, node, bits)
			}
		}
		rules := fmt.Sprintf("*filter\n:%[1]s - [0:0]\n:%[2]s - [0:0]\n:%[5]s - [0:0]\n%[3]s-A %[1]s -j DROP\n%[4]s"+
			"%[6]s-A %[5]s -m owner --uid-owner 0-4294967294 -m mark ! --mark %[7]s/%[7]s -j DROP\nCOMMIT\n"+
			"*mangle\n:%[8]s - [0:0]\n-A %[8]s -j MARK --set-xmark %[7]s/%[7]s\nCOMMIT\n",
			iptablesInput, iptablesForward, in.String(), out.String(), iptablesOutput, pods.String(), takenMark, iptablesMark)
		if err := restore(ctx, program, rules); err != nil {
			return err
		}
		for _, jump := range iptablesJumps(own, port, device) {
			if iptables(ctx, program, "-C", jump.table, jump.rule) == nil {
				continue
			}
			if err := iptables(ctx, program, "-I", jump.table, jump.rule); err != nil {
				return err
			}
		}
	}
	return nil
}

// jump is a rule of a table of iptables that jumps to a chain of the fence.
type jump struct {
	table string
	rule  []string
}

// iptablesJumps returns the jumps for packets to a UDP port, and for those to the VXLAN device.
func iptablesJumps(pods netip.Prefix, port, device string) []jump {
	return []jump{
		{"filter", []string{"INPUT", "-p", "udp", "--dport", port, "-j", iptablesInput}},
		{"filter", []string{"FORWARD", "-s", pods.String(), "-p", "udp", "--dport", port, "-j", iptablesForward}},
		{"filter", []string{"FORWARD", "-m", "conntrack", "--ctstate", "DNAT", "-p", "udp", "--dport", port, "-j", iptablesForward}},
		{"filter", []string{"OUTPUT", "-p", "udp", "--dport", port, "-j", iptablesOutput}},
		{"mangle", []string{"POSTROUTING", "-o", device, "-j", iptablesMark}},
	}
}

// iptables applies an operation such as -I or -D to a rule of a table.
func iptables(ctx context.Context, program, what, table string, rule []string) error {
	output, err := exec.CommandContext(ctx, program, append([]string{"--wait=10", "-t", table, what}, rule...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s -t %s %s %s: %w: %s", program, table, what, strings.Join(rule, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// restore writes chains with their rules. The chains that it names have only these rules then.
func restore(ctx context.Context, program, rules string) error {
	command := exec.CommandContext(ctx, program+"-restore", "--noflush", "--wait=10")
	command.Stdin = strings.NewReader(rules)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s-restore: %w: %s", program, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// removeIPTables removes the chains of kedge's network from iptables if there are some. It asks iptables only then, because
// asking loads the kernel's modules.
func removeIPTables(ctx context.Context) error {
	made := slices.DeleteFunc([]string{fenceFile, podsFile}, func(file string) bool {
		_, err := os.Stat(file)
		return err != nil
	})
	if len(made) == 0 {
		return nil
	}
	var faults []error
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"filter", "mangle"} {
			faults = append(faults, removeChains(ctx, program, table))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("remove the firewall rules of the pods' network: %w", err)
	}
	for _, file := range made {
		faults = append(faults, os.Remove(file))
	}
	return errors.Join(faults...)
}

// removeChains removes the chains of kedge's network from a table, and the jumps to them.
func removeChains(ctx context.Context, program, table string) error {
	rules, err := exec.CommandContext(ctx, program+"-save", "-t", table).Output()
	if err != nil {
		return fmt.Errorf("%s-save: %w", program, err)
	}
	chains := []string{iptablesInput, iptablesForward, iptablesOutput, iptablesMark, podsChain}
	var faults []error
	for line := range strings.Lines(string(rules)) {
		rule := strings.Fields(line)
		// The jumps come first, because iptables-save lists them before the rules of the chains.
		if len(rule) > 2 && rule[0] == "-A" && !slices.Contains(chains, rule[1]) && slices.Contains(chains, rule[len(rule)-1]) {
			faults = append(faults, iptables(ctx, program, "-D", table, rule[1:]))
		}
	}
	for _, chain := range chains {
		if strings.Contains(string(rules), ":"+chain+" ") {
			faults = append(faults, iptables(ctx, program, "-F", table, []string{chain}), iptables(ctx, program, "-X", table, []string{chain}))
		}
	}
	return errors.Join(faults...)
}
