package bounds

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// A node refuses an update that is too large. So there is a budget for everything, and each namespace
// has a share of it. The shares are as equal as can be: a namespace that needs less than the others
// leaves the rest to them. If not everything fits, the namespaces that need the most lose their newest
// routes, and nobody else loses anything.
const (
	// maxState is how many bytes of JSON everything may have that nodes get, about. An update may
	// have 32 MiB (package nodestream).
	maxState = 24 << 20
	// leastValue is how many bytes a value counts at least. So there are at most 50,000 values. An
	// update may have twice as many names of each kind: of new values, and of those that are gone.
	leastValue = maxState / 50_000
)

// The order in which the values of a namespace get room. Endpoints come first: without them, requests
// would go to addresses that somebody else has by now.
const (
	backendRank = iota
	certificateRank
	listenerRank
	routeRank
)

// item is a value that takes room: a backend, a certificate, a route or a listener of a socket.
type item struct {
	kind, name, namespace string
	rank, size            int
	// route is nil for other values.
	route *routing.Route
	// listener is the number of a listener in the socket that has the name.
	listener int
}

// fit leaves out what does not fit into the budget. owner returns the namespace that has a host, or an
// empty name.
func fit(state *routing.State, owner func(host string) string) (*routing.State, []Refusal) {
	items := itemsOf(state, owner)
	sizes := map[string]int{}
	for i := range items {
		sizes[items[i].namespace] += items[i].size
	}
	share := share(sizes, maxState)
	if share == math.MaxInt {
		return state, nil
	}
	items = slices.DeleteFunc(items, func(i item) bool { return sizes[i.namespace] <= share })
	slices.SortFunc(items, func(a, b item) int {
		order := cmp.Compare(a.rank, b.rank)
		if order == 0 && a.route != nil {
			order = a.route.Created.Compare(b.route.Created)
		}
		return cmp.Or(order, cmp.Compare(a.name, b.name), cmp.Compare(a.listener, b.listener))
	})
	made := &routing.State{
		Sockets: maps.Clone(state.Sockets), Routes: maps.Clone(state.Routes),
		Backends: maps.Clone(state.Backends), Certificates: maps.Clone(state.Certificates),
	}
	used, gone := map[string]int{}, map[lost]bool{}
	var refusals []Refusal
	for _, i := range items {
		if used[i.namespace]+i.size <= share {
			used[i.namespace] += i.size
			continue
		}
		refusals = append(refusals, Refusal{i.kind, i.refusedName(state), tooMuch(i.namespace)})
		switch i.rank {
		case backendRank:
			delete(made.Backends, i.name)
		case certificateRank:
			delete(made.Certificates, i.name)
		case listenerRank:
			gone[lost{i.name, i.listener}] = true
		case routeRank:
			// Otherwise requests could go where their owner does not want them.
			closed := closedRoute(i.route)
			if size := sizeOfRoute(closed, 1); used[i.namespace]+size <= share {
				used[i.namespace] += size
				made.Routes[i.name] = closed
			} else {
				delete(made.Routes, i.name)
			}
		}
	}
	prune(made, gone)
	return made, refusals
}

// tooMuch says why a value of a namespace is left out.
func tooMuch(namespace string) string {
	return fmt.Sprintf("there is no room for it: all that nodes have to know has more than %d MiB, and namespace %s has one of the largest parts. "+
		"Delete Gateways, Ingresses or routes of the namespace, or give them fewer or smaller values", maxState>>20, namespace)
}

// refusedName returns the name of a value for messages.
func (i *item) refusedName(state *routing.State) string {
	if i.rank == listenerRank {
		return state.Sockets[i.name].Listeners[i.listener].Name
	}
	return i.name
}

// itemsOf returns all values of a State with their sizes.
func itemsOf(state *routing.State, owner func(host string) string) []item {
	var items []item
	for name, backend := range state.Backends {
		namespace, _, _ := strings.Cut(backend.Name, "/")
		items = append(items, item{kind: "backend", name: name, namespace: namespace, rank: backendRank, size: sizeOfValue(backend)})
	}
	for name, certificate := range state.Certificates {
		items = append(items, item{kind: "certificate", name: name, namespace: namespaceOfCertificate(name), rank: certificateRank, size: sizeOfValue(certificate)})
	}
	attached := map[string]int{}
	for name, socket := range state.Sockets {
		for i := range socket.Listeners {
			listener := socket.Listeners[i]
			for _, route := range listener.Routes {
				attached[route]++
			}
			namespace := namespaceOfListener(state, &listener, owner)
			listener.Routes = nil // which count with the routes
			items = append(items, item{kind: "listener", name: name, namespace: namespace, rank: listenerRank, size: sizeOfValue(&listener), listener: i})
		}
	}
	for name, route := range state.Routes {
		items = append(items, item{kind: "route", name: name, namespace: route.Namespace(), rank: routeRank, size: sizeOfRoute(route, attached[name]), route: route})
	}
	return items
}

// sizeOfValue returns how much of the budget a value takes.
func sizeOfValue(value any) int { return max(leastValue, sizeOf(reflect.ValueOf(value))) }

// sizeOfRoute returns how much of the budget a route takes whose name is in some listeners.
func sizeOfRoute(route *routing.Route, listeners int) int {
	return sizeOfValue(route) + listeners*sizeOf(reflect.ValueOf(route.Name))
}

// namespaceOfListener returns whose listener it is. Those of Ingresses, and those that the shared front
// has in addition, have the name of the front. Their certificates, routes or hosts say whose they are.
func namespaceOfListener(state *routing.State, listener *routing.Listener, owner func(host string) string) string {
	namespace, _, _ := strings.Cut(listener.Name, "/")
	if !strings.HasPrefix(listener.Name, front.Shared.String()+"/") {
		return namespace
	}
	if len(listener.Certificates) > 0 {
		return namespaceOfCertificate(listener.Certificates[0])
	}
	for _, name := range listener.Routes {
		if route := state.Routes[name]; route != nil {
			return route.Namespace()
		}
	}
	return cmp.Or(owner(listener.Hostname), namespace)
}

// namespaceOfCertificate returns whose certificate it is, by its name: NAMESPACE/NAME, or
// Secret/NAMESPACE/NAME of an Ingress.
func namespaceOfCertificate(name string) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(name, "Secret/"), "/")
	return namespace
}

// share returns how much each namespace may have, so that all together have at most room. It is
// math.MaxInt if each may have what it needs.
func share(needs map[string]int, room int) int {
	sorted := slices.Sorted(maps.Values(needs))
	for i, need := range sorted {
		each := room / (len(sorted) - i)
		if need > each {
			return each
		}
		room -= need
	}
	return math.MaxInt
}

// lost is a listener that is left out: the name of its socket, and its number there.
type lost struct {
	socket string
	number int
}

// prune takes listeners out of the sockets, and routes that are not there out of listeners.
func prune(state *routing.State, gone map[lost]bool) {
	for name, socket := range state.Sockets {
		pruned := *socket
		pruned.Listeners = nil
		for i, listener := range socket.Listeners {
			if gone[lost{name, i}] {
				continue
			}
			listener.Routes = slices.DeleteFunc(slices.Clone(listener.Routes), func(route string) bool { return state.Routes[route] == nil })
			pruned.Listeners = append(pruned.Listeners, listener)
		}
		state.Sockets[name] = &pruned
	}
}
