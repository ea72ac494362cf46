package front

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Merge joins two lists of fronts. Fronts of the same name become one, with the listeners of
// a before those of b. Listeners of both can share each port: Ingresses have only 80 and 443,
// which Gateways use in the same way (PlainPort, SecurePort). Merge changes neither a nor b.
func Merge(a, b []Front) []Front {
	merged := make([]Front, 0, len(a)+len(b))
	places := map[types.NamespacedName]int{}
	for _, f := range slices.Concat(a, b) {
		place, found := places[f.Name]
		if !found {
			places[f.Name] = len(merged)
			merged = append(merged, f)
			continue
		}
		merged[place] = join(merged[place], f)
	}
	return merged
}

// join returns a with what b has in addition.
func join(a, b Front) Front {
	if a.Gateway == nil {
		a.Gateway = b.Gateway
	}
	a.Labels = union(a.Labels, b.Labels)
	a.Annotations = union(a.Annotations, b.Annotations)
	a.Addresses = slices.Clone(a.Addresses)
	for _, address := range b.Addresses {
		if !slices.Contains(a.Addresses, address) {
			a.Addresses = append(a.Addresses, address)
		}
	}
	a.Ports = slices.Clone(a.Ports)
	for _, port := range b.Ports {
		place := slices.IndexFunc(a.Ports, func(other Port) bool {
			return other.Number == port.Number && other.Transport == port.Transport
		})
		if place < 0 {
			a.Ports = append(a.Ports, port)
			continue
		}
		joined := &a.Ports[place]
		joined.Listeners = slices.Concat(joined.Listeners, port.Listeners)
		joined.HTTP3 = joined.HTTP3 || port.HTTP3
	}
	return a
}

// union returns the values of a, and those of b whose keys a does not have.
func union(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	both := maps.Clone(b)
	maps.Copy(both, a)
	return both
}
