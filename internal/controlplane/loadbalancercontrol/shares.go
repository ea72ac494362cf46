package loadbalancercontrol

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// shares knows which Services have which address of the pools.
type shares struct {
	w *world
	// taken has the Services of each address, the oldest first.
	taken map[netip.Addr][]*corev1.Service
	// hosts are the addresses of nodes and of the control plane, which nobody gets.
	hosts map[netip.Addr]bool
}

// announced is an address of a pool, with the Services that have it and the nodes that may
// announce it.
type announced struct {
	// services are the Services, NAMESPACE/NAME, separated by commas.
	services string
	nodes    []string
}

// newShares begins with the addresses that Services already have.
func newShares(w *world) *shares {
	s := &shares{w: w, taken: map[netip.Addr][]*corev1.Service{}, hosts: map[netip.Addr]bool{w.vip: true}}
	for _, node := range w.nodes {
		for _, address := range slices.Concat(node.internal, node.external) {
			s.hosts[address] = true
		}
	}
	// The Services are sorted by age.
	for _, service := range w.services {
		if !s.wants(service) {
			continue
		}
		for address, names := range w.held {
			has := slices.Contains(strings.Split(names, ","), nameOf(service))
			if has && s.fits(service, address) && s.joins(service, address) == "" {
				s.taken[address] = append(s.taken[address], service)
			}
		}
	}
	return s
}

func nameOf(service *corev1.Service) string { return service.Namespace + "/" + service.Name }

// asked returns the addresses that a Service wants.
func (s *shares) asked(service *corev1.Service) (addresses []netip.Addr, err error) {
	text := service.Annotations[servicelb.AddressAnnotation]
	// k3s's load balancer ignores this field, so it asks for nothing without pools.
	if text == "" && len(s.w.pools) > 0 {
		text = service.Spec.LoadBalancerIP
	}
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address", part)
		}
		addresses = append(addresses, address.Unmap())
	}
	return addresses, nil
}

// asks tells whether a Service asks for addresses of pools.
func (s *shares) asks(service *corev1.Service) bool {
	asked, err := s.asked(service)
	return classOf(service) == servicelb.PoolClass || service.Annotations[servicelb.PoolAnnotation] != "" || len(asked) > 0 || err != nil
}

func classOf(service *corev1.Service) string { return ptr.Deref(service.Spec.LoadBalancerClass, "") }

// wants tells whether a Service gets addresses of pools, and not those of nodes.
func (s *shares) wants(service *corev1.Service) bool {
	return s.asks(service) || classOf(service) == "" &&
		slices.ContainsFunc(s.w.pools, func(p *pool) bool { return p.automatic && p.allows(service, s.w.namespace) })
}

// poolsOf returns the pools whose addresses a Service may get, or why there is none.
func (s *shares) poolsOf(service *corev1.Service) (pools []*pool, fault string) {
	name := service.Annotations[servicelb.PoolAnnotation]
	asks := s.asks(service)
	for _, p := range s.w.pools {
		if name != "" && p.name != name || !asks && !p.automatic {
			continue
		}
		if p.allows(service, s.w.namespace) {
			pools = append(pools, p)
		} else if name != "" {
			return nil, fmt.Sprintf("the selectors of LoadBalancerPool %s do not allow this Service", name)
		}
	}
	switch {
	case len(pools) > 0:
		return pools, ""
	case name != "":
		return nil, fmt.Sprintf("there is no LoadBalancerPool %s", name)
	}
	return nil, "there is no LoadBalancerPool that this Service may use"
}

// fits tells whether a Service may have an address.
func (s *shares) fits(service *corev1.Service, address netip.Addr) bool {
	pools, _ := s.poolsOf(service)
	asked, err := s.asked(service)
	if err != nil || s.hosts[address] || !slices.Contains(service.Spec.IPFamilies, familyOf(address)) {
		return false
	}
	if of := ofFamily(asked, familyOf(address)); of.IsValid() && of != address {
		return false
	}
	return poolWith(pools, address) != nil
}

func ofFamily(addresses []netip.Addr, family corev1.IPFamily) netip.Addr {
	for _, address := range addresses {
		if familyOf(address) == family {
			return address
		}
	}
	return netip.Addr{}
}

func poolWith(pools []*pool, address netip.Addr) *pool {
	for _, p := range pools {
		if p.contains(address) {
			return p
		}
	}
	return nil
}

// address returns the address of a family for a Service, or why there is none.
func (s *shares) address(service *corev1.Service, pools []*pool, asked netip.Addr, family corev1.IPFamily) (netip.Addr, string) {
	if asked.IsValid() {
		why := s.joins(service, asked)
		switch {
		case poolWith(pools, asked) == nil:
			return netip.Addr{}, fmt.Sprintf("no LoadBalancerPool that this Service may use has the address %s", asked)
		case s.hosts[asked]:
			return netip.Addr{}, fmt.Sprintf("%s is the address of a node or of the control plane", asked)
		case why != "":
			return netip.Addr{}, why
		}
		return s.take(service, asked), ""
	}
	var own, shared netip.Addr
	for address, holders := range s.taken {
		of := &shared
		switch {
		case familyOf(address) != family:
			continue
		case slices.Contains(holders, service):
			of = &own
		case poolWith(pools, address) == nil || s.joins(service, address) != "":
			continue
		}
		if !of.IsValid() || address.Less(*of) {
			*of = address
		}
	}
	if own.IsValid() {
		return own, ""
	}
	if shared.IsValid() {
		return s.take(service, shared), ""
	}
	for _, p := range pools {
		for _, r := range p.ranges {
			if familyOf(r.first) != family {
				continue
			}
			for address := r.first; r.contains(address); address = address.Next() {
				if len(s.taken[address]) == 0 && !s.hosts[address] && (r.first == r.last || !isEdge(address)) {
					return s.take(service, address), ""
				}
			}
		}
	}
	return netip.Addr{}, fmt.Sprintf("no LoadBalancerPool that this Service may use has a free %s address", family)
}

// take gives an address to a Service.
func (s *shares) take(service *corev1.Service, address netip.Addr) netip.Addr {
	if !slices.Contains(s.taken[address], service) {
		s.taken[address] = append(s.taken[address], service)
	}
	return address
}

// isEdge tells whether an address is likely to be a network's own or its broadcast address:
// of a /24, or of a /64. A Service gets such an address only if it asks for it, or if the
// pool lists it alone.
func isEdge(address netip.Addr) bool {
	bytes := address.AsSlice()
	if address.Is4() {
		return bytes[3] == 0 || bytes[3] == 255
	}
	return slices.Equal(bytes[8:], make([]byte, 8))
}

// fromPools gives a Service addresses of pools. If local is not nil, only nodes in it may
// announce them. The Service has its addresses also while it has no endpoint, because
// records of DNS point to them.
func (w *world) fromPools(service *corev1.Service, o *outcome, shares *shares, local localPorts, leases map[netip.Addr]*announced) {
	asked, err := shares.asked(service)
	if err != nil {
		o.fail(reasonPool, "%s", err)
		return
	}
	pools, fault := shares.poolsOf(service)
	if fault != "" {
		o.fail(reasonPool, "%s", fault)
		return
	}
	var missing string
	for _, family := range service.Spec.IPFamilies {
		address, why := shares.address(service, pools, ofFamily(asked, family), family)
		if !address.IsValid() {
			missing = why
			if ofFamily(asked, family).IsValid() {
				o.fail(reasonPool, "%s", why)
			}
			continue
		}
		nodes := w.announcers(poolWith(pools, address), local)
		if of := leases[address]; of == nil {
			leases[address] = &announced{nameOf(service), nodes}
		} else {
			nodes = slices.DeleteFunc(nodes, func(node string) bool { return !slices.Contains(of.nodes, node) })
			leases[address] = &announced{of.services + "," + nameOf(service), nodes}
		}
		switch {
		case len(nodes) > 0:
		case local != nil && len(w.announcers(poolWith(pools, address), nil)) > 0:
			o.fail(reasonUnavailable, "No node announces the address %s: externalTrafficPolicy is Local, and no node that may announce it has a ready endpoint", address)
		default:
			o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: no node may announce the address %s", address)
			continue
		}
		o.addresses = append(o.addresses, address)
	}
	if len(o.addresses) == 0 && missing != "" {
		o.fail(reasonPool, "%s", missing)
	}
}

// announcers returns the nodes that may announce an address of a pool. Whether they answer
// does not matter here: the Lease decides that sooner.
func (w *world) announcers(p *pool, local localPorts) []string {
	var names []string
	for _, node := range w.nodes {
		if node.available && p.nodes.Matches(node.labels) && local.has(node.name) {
			names = append(names, node.name)
		}
	}
	slices.Sort(names)
	return names
}
