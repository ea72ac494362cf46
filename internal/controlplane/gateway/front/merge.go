package front

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Merge joins two lists of fronts. Fronts of the same name become one, with the listeners of
// a before those of b. Of listeners that cannot share a port, those of a stay. Merge changes
// neither a nor b.
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
		added := slices.DeleteFunc(slices.Clone(port.Listeners), func(l routing.Listener) bool {
			return len(joined.Listeners) > 0 && groupOf(l.Protocol) != groupOf(joined.Listeners[0].Protocol)
		})
		joined.Listeners = slices.Concat(joined.Listeners, added)
		joined.HTTP3 = joined.HTTP3 || port.HTTP3 && len(added) > 0
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

// groupOf returns a name for the protocols that share a port with this one. Protocols of TLS
// share one, because the server name tells whose a connection is.
func groupOf(protocol routing.Protocol) routing.Protocol {
	switch protocol {
	case routing.TLSPassthrough, routing.TLSTerminate:
		return routing.HTTPS
	}
	return protocol
}
