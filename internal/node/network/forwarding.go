package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// podsFile exists if iptables may have podsChain. A reboot removes both.
	podsFile  = datadir.RunDir + "/network-forwarding"
	podsChain = "KEDGE-PODS"
	// forwarded is iptables' chain for forwarded packets.
	forwarded = "FORWARD"
)

// letPodsThrough lets packets of pods pass a firewall of the host that drops forwarded packets by default, as Docker
// configures it if it starts before kedge. The chain of iptables that does this gets rules for them. They are its last
// ones, so that the other rules can still forbid something. kedge does not change tables of others. It only warns if one
// drops by default: what one table accepts can still be dropped by another.
func (n *Network) letPodsThrough(ctx context.Context) {
	output, err := exec.CommandContext(ctx, "nft", "--json", "list", "chains").Output()
	if err != nil {
		return // this kernel has no nftables
	}
	for _, chain := range droppingChains(output) {
		err := errors.New("it belongs to somebody else")
		if program, of := programs[chain]; of {
			err = acceptPods(ctx, program, n.cfg.Cluster.PodCIDRs())
		}
		if err != nil {
			n.log.Warnf("This host's firewall drops forwarded packets by default, so pods may be cut off. Let its nftables chain %s accept packets from and to %s. kedge cannot do that: %v",
				chain, n.cfg.Cluster.PodCIDRs(), err)
		}
	}
}

// programs change the chains that say what happens to forwarded packets.
var programs = map[string]string{"ip filter " + forwarded: "iptables", "ip6 filter " + forwarded: "ip6tables"}

// acceptPods adds podsChain to what forwarded packets pass in iptables, or in ip6tables.
func acceptPods(ctx context.Context, program string, cidrs []netip.Prefix) error {
	var rules strings.Builder
	for _, cidr := range cidrs {
		if cidr.Addr().Is4() == (program == "iptables") {
			fmt.Fprintf(&rules, "-A %[1]s -s %[2]s -j ACCEPT\n-A %[1]s -d %[2]s -j ACCEPT\n", podsChain, cidr)
		}
	}
	if rules.Len() == 0 {
		return nil // pods have no addresses of this family
	}
	if err := os.WriteFile(podsFile, nil, 0o600); err != nil {
		return err
	}
	if err := restore(ctx, program, fmt.Sprintf("*filter\n:%s - [0:0]\n%sCOMMIT\n", podsChain, rules.String())); err != nil {
		return err
	}
	jump := []string{forwarded, "-j", podsChain}
	if iptables(ctx, program, "-C", "filter", jump) == nil {
		return nil
	}
	return iptables(ctx, program, "-A", "filter", jump)
}

// droppingChains returns the chains in nft's JSON listing that drop forwarded packets unless a rule
// accepts them.
func droppingChains(listing []byte) []string {
	var list struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		}
	}
	if err := json.Unmarshal(listing, &list); err != nil {
		return nil
	}
	var dropping []string
	for _, object := range list.Nftables {
		if c := object.Chain; c != nil && c.Hook == string(knftables.ForwardHook) && c.Policy == string(knftables.DropPolicy) {
			dropping = append(dropping, c.Family+" "+c.Table+" "+c.Name)
		}
	}
	return dropping
}
