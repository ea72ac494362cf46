package reach

import (
	"cmp"
	"context"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// Rules are what the service proxy of a node does with connections to an address of a Service.
type Rules struct {
	State RulesState `json:"state"`
	// Endpoints are those to which the rules send connections.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
}

// RulesState tells which rules there are.
type RulesState string

// The states.
const (
	// Unknown is a node whose service proxy does not use nftables.
	Unknown RulesState = "unknown"
	// None is an address that the service proxy does not know.
	None RulesState = "none"
	// Refuses is an address of a Service without endpoints.
	Refuses RulesState = "refuses"
	// Sends is an address whose connections go to endpoints.
	Sends RulesState = "sends"
)

// rulesFor reads the rules for a TCP address. nft is asked for two elements of maps and one chain, because all rules of a large cluster would take
// seconds.
//
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go serviceIPsMap noEndpointServicesMap servicePortEndpointChainNameBase Proxier.writeServiceToEndpointDNATs Proxier.writeServiceToEndpointJumps
func rulesFor(ctx context.Context, target netip.AddrPort) Rules {
	family := "ip"
	if target.Addr().Is6() {
		family = "ip6"
	}
	element := "{ " + target.Addr().String() + " . tcp . " + strconv.Itoa(int(target.Port())) + " }"
	nft := func(words ...string) (string, bool) {
		text, err := exec.CommandContext(ctx, "nft", words...).CombinedOutput()
		return string(text), err == nil
	}
	text, ok := nft("get", "element", family, "kube-proxy", "service-ips", element)
	if ok {
		sends := Rules{State: Sends}
		// The chain of an address outside of the cluster leads to the chain of the Service.
		for chain := chainOf.FindStringSubmatch(text); chain != nil && len(sends.Endpoints) == 0; chain = chainOf.FindStringSubmatch(text) {
			text, _ = nft("list", "chain", family, "kube-proxy", chain[1])
			sends.Endpoints = endpointsOf(text, target.Addr().Is6())
		}
		return sends
	}
	if _, ok := nft("get", "element", family, "kube-proxy", "no-endpoint-services", element); ok {
		return Rules{State: Refuses}
	}
	// nft says something else if the map itself is missing.
	if strings.Contains(text, "Could not process rule") {
		return Rules{State: None}
	}
	return Rules{State: Unknown}
}

var (
	// chainOf finds the chain of a Service to which an element or a rule leads. A chain leads only to those behind it in this order:
	// external, local or service.
	chainOf = regexp.MustCompile(`goto ((?:external|local|service)-[A-Za-z0-9_./-]+)`)
	// onlyEndpoint finds the endpoint of a Service that has one.
	onlyEndpoint = regexp.MustCompile(`dnat to (\S+)`)
	// endpointOf finds the endpoints of a Service that has several. With session affinity they are in names of chains, which have no
	// colons: an address of IPv6 has dots in their place.
	endpointOf = regexp.MustCompile(`[0-9]+ : (?:goto endpoint-[A-Za-z0-9_./-]+__([0-9a-f.]+)/|([0-9a-f.:]+) \. )([0-9]+)`)
)

// endpointsOf reads the endpoints of a chain.
func endpointsOf(chain string, is6 bool) (all []netip.AddrPort) {
	if match := onlyEndpoint.FindStringSubmatch(chain); match != nil {
		if only, err := netip.ParseAddrPort(match[1]); err == nil {
			return []netip.AddrPort{only}
		}
	}
	for _, match := range endpointOf.FindAllStringSubmatch(chain, -1) {
		address := cmp.Or(match[1], match[2])
		if is6 {
			address = strings.ReplaceAll(address, ".", ":")
		}
		ip, err := netip.ParseAddr(address)
		port, fault := strconv.ParseUint(match[3], 10, 16)
		if err == nil && fault == nil {
			all = append(all, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	return all
}
