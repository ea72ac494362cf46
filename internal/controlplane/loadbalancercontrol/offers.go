package loadbalancercontrol

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Offers returns a function that tells whether one of the LoadBalancerPools gives a Service an
// address without being asked. Its arguments are the labels of the Service and of its
// namespace. Pools that cannot be read offer nothing.
func Offers(pools []*unstructured.Unstructured) func(service, namespace labels.Set) bool {
	var automatic []*pool
	for _, object := range pools {
		if p, err := parsePool(object); err == nil && p.automatic && len(p.ranges) > 0 {
			automatic = append(automatic, p)
		}
	}
	return func(service, namespace labels.Set) bool {
		return slices.ContainsFunc(automatic, func(p *pool) bool {
			return p.services.Matches(service) && p.namespaces.Matches(namespace)
		})
	}
}

// PoolOf returns a function that returns the name of the LoadBalancerPool that has an address. The name
// is empty if no pool has it.
func PoolOf(pools []*unstructured.Unstructured) func(netip.Addr) string {
	var all []*pool
	for _, object := range pools {
		// A pool with a fault has the addresses that can be read.
		if p, _ := parsePool(object); p != nil {
			all = append(all, p)
		}
	}
	return func(address netip.Addr) string {
		if p := poolWith(all, address); p != nil {
			return p.name
		}
		return ""
	}
}
