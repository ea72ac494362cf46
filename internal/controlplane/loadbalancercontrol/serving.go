package loadbalancercontrol

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// Serving knows which nodes may serve a Service at its addresses, whether or not they can at the
// moment. The gateway asks it, because a node gets only what it serves.
type Serving struct {
	w      *world
	shares *shares
	choice servicelb.Choice
	// pooled says that kedge gives Services addresses of pools.
	pooled bool
	sets   map[string]*NodeSet
}

// NodeSet are the nodes that may serve a Service.
type NodeSet struct {
	// Name is the same for Services that have the same set for the same reason.
	Name  string
	nodes map[string]bool
}

// Has tells whether a node is in the set. It may be called on nil, which has none.
func (s *NodeSet) Has(node string) bool { return s != nil && s.nodes[node] }

// NewServing reads the pools and nodes of a cluster. pools is nil if kedge gives no addresses of
// pools. namespace returns the labels of a namespace.
func NewServing(pools []*unstructured.Unstructured, nodes []*corev1.Node, namespace func(string) labels.Set) *Serving {
	w := &world{namespace: namespace}
	for _, object := range nodes {
		w.nodes = append(w.nodes, &node{name: object.Name, labels: object.Labels})
	}
	for _, object := range pools {
		if p, err := parsePool(object); err == nil || p != nil && len(p.ranges) > 0 {
			w.pools = append(w.pools, p)
		}
	}
	slices.SortFunc(w.pools, func(a, b *pool) int { return strings.Compare(a.name, b.name) })
	return &Serving{w: w, shares: &shares{w: w}, choice: w.choice(), pooled: pools != nil, sets: map[string]*NodeSet{}}
}

// Of returns the nodes that may serve a Service: those that may announce its addresses if they are
// of a pool, and else those whose addresses it may get.
func (s *Serving) Of(service *corev1.Service) *NodeSet {
	if !s.pooled || !s.shares.wants(service) {
		return s.set("nodes/"+service.Labels[servicelb.PoolLabel], func(node labels.Set) bool { return s.choice.Allows(node, service.Labels) })
	}
	pools := s.shares.from(service)
	var names []string
	for _, p := range pools {
		names = append(names, p.name)
	}
	return s.set("pools/"+strings.Join(names, ","), func(node labels.Set) bool {
		return servicelb.Choice{}.Allows(node, nil) && slices.ContainsFunc(pools, func(p *pool) bool { return p.nodes.Matches(node) })
	})
}

// set returns the set of a name. It makes the set when it is first asked for.
func (s *Serving) set(name string, has func(node labels.Set) bool) *NodeSet {
	if known := s.sets[name]; known != nil {
		return known
	}
	made := &NodeSet{Name: name, nodes: map[string]bool{}}
	for _, node := range s.w.nodes {
		if has(node.labels) {
			made.nodes[node.name] = true
		}
	}
	s.sets[name] = made
	return made
}

// from returns the pools that a Service has its addresses from, sorted by name. If it has none of
// a family yet, these are all that may give it one.
func (s *shares) from(service *corev1.Service) (found []*pool) {
	may, _ := s.poolsOf(service)
	asked, _ := s.asked(service)
	has := given(service)
	for _, family := range service.Spec.IPFamilies {
		address := ofFamily(asked, family)
		if !address.IsValid() {
			address = ofFamily(has, family)
			if poolWith(may, address) == nil {
				for _, p := range may {
					if slices.ContainsFunc(p.ranges, func(r addressRange) bool { return familyOf(r.first) == family }) {
						found = append(found, p)
					}
				}
				continue
			}
		}
		if p := poolWith(may, address); p != nil {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *pool) int { return strings.Compare(a.name, b.name) })
	return slices.Compact(found)
}

// given returns the addresses in the status of a Service.
func given(service *corev1.Service) (addresses []netip.Addr) {
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(ingress.IP); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}
