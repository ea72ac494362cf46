package reach

import (
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
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go serviceIPsMap noEndpointServicesMap servicePortEndpointChainNameBase
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
	if chain := chainOf.FindStringSubmatch(text); ok && chain != nil {
		text, _ = nft("list", "chain", family, "kube-proxy", chain[1])
		return Rules{State: Sends, Endpoints: endpointsOf(text, target.Addr().Is6())}
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
	// chainOf finds the chain to which an element of a map leads.
	chainOf = regexp.MustCompile(`: goto ([A-Za-z0-9_./-]+)`)
	// endpointName finds the address and the port in the names of chains of endpoints.
	endpointName = regexp.MustCompile(`goto endpoint-[A-Za-z0-9_./-]+__([0-9a-f.]+)/([0-9]+)`)
)

// endpointsOf reads the endpoints of a chain. The name of a chain has no colons: an address of IPv6 has dots in their place.
func endpointsOf(chain string, is6 bool) (all []netip.AddrPort) {
	for _, match := range endpointName.FindAllStringSubmatch(chain, -1) {
		host := match[1]
		if is6 {
			host = strings.ReplaceAll(host, ".", ":")
		}
		ip, err := netip.ParseAddr(host)
		port, fault := strconv.ParseUint(match[2], 10, 16)
		if err == nil && fault == nil {
			all = append(all, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	return all
}
