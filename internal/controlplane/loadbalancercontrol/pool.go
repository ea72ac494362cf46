package loadbalancercontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// poolPatience is how long the first plan waits for the pools. If somebody has removed the
// CustomResourceDefinition, they never come.
const poolPatience = 10 * time.Second

// PoolResource is the kind LoadBalancerPool: it is in /manifests/servicelb/pools.yaml.
var PoolResource = schema.GroupVersionResource{Group: "kedge.dev", Version: "v1alpha1", Resource: "loadbalancerpools"}

// poolObject is a LoadBalancerPool, as far as it is read.
type poolObject struct {
	Spec struct {
		Addresses         []string              `json:"addresses"`
		NodeSelector      *metav1.LabelSelector `json:"nodeSelector"`
		ServiceSelector   *metav1.LabelSelector `json:"serviceSelector"`
		NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	} `json:"spec"`
}

// pool has addresses for Services.
type pool struct {
	name   string
	ranges []addressRange
	// nodes, services and namespaces say who may announce and who may get the addresses.
	nodes, services, namespaces labels.Selector
	// automatic is true if Services that match get an address without asking.
	automatic bool
}

// addressRange has all addresses from first to last, which are of one family.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) contains(address netip.Addr) bool {
	return r.first.Is4() == address.Is4() && r.first.Compare(address) <= 0 && address.Compare(r.last) <= 0
}

// contains tells whether an address belongs to a pool.
func (p *pool) contains(address netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.contains(address) })
}

// allows tells whether a Service may get an address of a pool.
func (p *pool) allows(service *corev1.Service, namespace func(string) labels.Set) bool {
	return p.services.Matches(labels.Set(service.Labels)) && (p.namespaces.Empty() || p.namespaces.Matches(namespace(service.Namespace)))
}

// parsePool reads a LoadBalancerPool.
func parsePool(object *unstructured.Unstructured) (*pool, error) {
	var read poolObject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
		return nil, err
	}
	p := &pool{name: object.GetName(), automatic: read.Spec.ServiceSelector != nil || read.Spec.NamespaceSelector != nil}
	var faults []error
	for _, text := range read.Spec.Addresses {
		r, err := parseRange(text)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		p.ranges = append(p.ranges, r)
	}
	for _, selector := range []struct {
		from *metav1.LabelSelector
		to   *labels.Selector
	}{{read.Spec.NodeSelector, &p.nodes}, {read.Spec.ServiceSelector, &p.services}, {read.Spec.NamespaceSelector, &p.namespaces}} {
		*selector.to = labels.Everything()
		if selector.from == nil {
			continue
		}
		parsed, err := metav1.LabelSelectorAsSelector(selector.from)
		faults = append(faults, err)
		if err == nil {
			*selector.to = parsed
		}
	}
	return p, errors.Join(faults...)
}

// parseRange reads addresses as a CIDR, as FIRST-LAST, or as one address.
func parseRange(text string) (addressRange, error) {
	fault := func() (addressRange, error) {
		return addressRange{}, fmt.Errorf("%q is neither a range of addresses, such as 192.0.2.240/28 or 192.0.2.240-192.0.2.250, nor one address", text)
	}
	if prefix, err := netip.ParsePrefix(text); err == nil && !prefix.Addr().Is4In6() {
		return addressRange{prefix.Masked().Addr(), lastOf(prefix)}, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err := netip.ParseAddr(strings.TrimSpace(from))
	if err != nil || first.Is4In6() {
		return fault()
	}
	last, err := netip.ParseAddr(strings.TrimSpace(to))
	if err != nil || first.Is4() != last.Is4() || last.Less(first) || first.Zone() != "" || last.Zone() != "" {
		return fault()
	}
	return addressRange{first, last}, nil
}

// lastOf returns the last address of a range.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// watchPools starts watching the pools, once.
func (t *term) watchPools(ctx context.Context) {
	if t.pools != nil {
		return
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(t.custom, PoolResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	_ = informer.SetTransform(objectcache.WithoutManagedFields) // fails only after the start
	_, _ = informer.AddEventHandler(objectcache.Handler[*unstructured.Unstructured](t.changes, nil, nil))
	t.pools = informer.GetStore()
	t.watching.Go(func() { informer.RunWithContext(ctx) })
	waiting, cancel := context.WithTimeout(ctx, poolPatience)
	defer cancel()
	cache.WaitFor(waiting, "", informer.HasSyncedChecker())
}

// readPools returns the pools, sorted by name. It leaves out what is wrong, and logs it once.
func (t *term) readPools() []*pool {
	if t.pools == nil {
		return nil
	}
	var pools []*pool
	var faults []error
	for _, object := range t.pools.List() {
		custom, is := object.(*unstructured.Unstructured)
		if !is {
			continue
		}
		p, err := parsePool(custom)
		if err != nil {
			faults = append(faults, fmt.Errorf("LoadBalancerPool %s: %w", custom.GetName(), err))
		}
		if p == nil || err != nil && len(p.ranges) == 0 {
			continue
		}
		p.ranges = slices.DeleteFunc(p.ranges, func(r addressRange) bool {
			inside := slices.ContainsFunc(t.reserved, func(prefix netip.Prefix) bool {
				return r.contains(prefix.Addr()) || prefix.Contains(r.first)
			})
			if inside {
				faults = append(faults, fmt.Errorf("LoadBalancerPool %s: the addresses from %s to %s overlap with cluster-cidr or service-cidr and are not used", p.name, r.first, r.last))
			}
			return inside
		})
		pools = append(pools, p)
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	t.poolFaults.Tell(errors.Join(faults...))
	slices.SortFunc(pools, func(a, b *pool) int { return strings.Compare(a.name, b.name) })
	return pools
}
