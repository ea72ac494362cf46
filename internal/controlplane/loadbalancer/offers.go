package loadbalancer

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

// PoolOf returns the name of a LoadBalancerPool that has an address, or "".
func PoolOf(pools []*unstructured.Unstructured, address netip.Addr) string {
	for _, object := range pools {
		// A pool with a fault has the addresses that can be read.
		if p, _ := parsePool(object); p != nil && p.contains(address) {
			return p.name
		}
	}
	return ""
}
