package front

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/hosts"
)

// These are the ports of Shared that are always there. Each has protocols that several tenants
// can use beside each other, because the host name tells whose a request is.
const (
	PlainPort  = 80  // for HTTP
	SecurePort = 443 // for HTTPS and TLS
)

// Partition makes listeners of Shared so that the requests to a host reach only listeners of
// the namespaces that may serve it. If the listener that would get them also belongs to somebody
// else, the host gets one of its own on each port, with what its owner has there. If the owner
// has nothing there, nobody answers. A listener that was added has only those of the routes that
// fit its host. Partition changes nothing that it gets.
func Partition(fronts []Front, routes map[string]*routing.Route, owners *hosts.Owners) []Front {
	fronts = slices.Clone(fronts)
	names := owners.Names()
	for i := range fronts {
		if fronts[i].Name != Shared {
			continue
		}
		fronts[i].Ports = slices.Clone(fronts[i].Ports)
		for j := range fronts[i].Ports {
			port := &fronts[i].Ports[j]
			port.Listeners = partition(port.Listeners, routes, names, owners)
		}
	}
	return fronts
}

// nobody refuses requests to a host whose owner has nothing on a port.
const nobody = "/nobody"

// partition adds the listeners of hosts to those of a port. It begins with the widest names, because
// a listener that was added would also get the requests to narrower ones.
func partition(listeners []Listener, routes map[string]*routing.Route, names []string, owners *hosts.Owners) []Listener {
	// own has the listeners by host name, and all has also those that were added: what they are
	// copies of.
	own, all := map[string][]*Listener{}, map[string][]*Listener{}
	var namespaces []string
	for i := range listeners {
		if l := &listeners[i]; l.Protocol != routing.RawTCP && l.Protocol != routing.RawUDP {
			own[l.Hostname] = append(own[l.Hostname], l)
			all[l.Hostname] = append(all[l.Hostname], l)
			if !slices.Contains(namespaces, l.Namespace) {
				namespaces = append(namespaces, l.Namespace)
			}
		}
	}
	made := slices.Clone(listeners)
	fitting := map[*Listener]*byHost{}
	for _, name := range slices.SortedStableFunc(slices.Values(names), widest) {
		would := nearest(all, name, func(*Listener) bool { return true })
		if len(would) == 0 {
			continue
		}
		// Each namespace that may serve the host does so with its own most specific listeners.
		var shall []*Listener
		for _, namespace := range namespaces {
			if owners.Admits(namespace, name) {
				shall = append(shall, nearest(own, name, func(l *Listener) bool { return l.Namespace == namespace })...)
			}
		}
		if len(shall) == 0 {
			shall = []*Listener{{Listener: routing.Listener{Name: Shared.String() + nobody, Protocol: would[0].Protocol}}}
		}
		if isSame(would, shall) {
			continue
		}
		all[name] = shall
		for _, l := range shall {
			if narrow := *l; l.Hostname != name {
				narrow.Hostname = name
				if fitting[l] == nil {
					fitting[l] = newByHost(l.Routes, routes)
				}
				narrow.Routes = fitting[l].fitting(name)
				made = append(made, narrow)
			}
		}
	}
	// Of listeners with one host name, nodes use the settings of the first: those of the owner.
	slices.SortStableFunc(made, func(a, b Listener) int {
		switch first, second := owners.Owns(a.Namespace, a.Hostname), owners.Owns(b.Namespace, b.Hostname); {
		case first == second:
			return 0
		case first:
			return -1
		}
		return 1
	})
	return made
}

// byHost finds the routes of a listener by host name, without looking at each of them.
type byHost struct {
	// whole has the routes by their own host names, and below by the wildcards that cover these.
	whole, below map[string][]string
}

func newByHost(names []string, routes map[string]*routing.Route) *byHost {
	b := &byHost{map[string][]string{}, map[string][]string{}}
	for _, name := range names {
		route := routes[name]
		if route == nil {
			continue
		}
		if len(route.Hostnames) == 0 {
			b.whole[""] = append(b.whole[""], name)
		}
		for _, host := range route.Hostnames {
			b.whole[host] = append(b.whole[host], name)
			for wider := range hosts.Wider(host) {
				b.below[wider] = append(b.below[wider], name)
			}
		}
	}
	return b
}

// fitting returns the routes that requests to a host may go to. A wildcard has all routes below it,
// too.
func (b *byHost) fitting(host string) []string {
	found := slices.Concat(b.whole[host], b.below[host])
	for wider := range hosts.Wider(host) {
		found = append(found, b.whole[wider]...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// isSame tells whether two lists have the same listeners.
func isSame(a, b []*Listener) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(l *Listener) bool { return !slices.Contains(b, l) })
}

// nearest returns the listeners that fit of the most specific name that a host has, or that covers it,
// and that has some.
func nearest(byName map[string][]*Listener, host string, fits func(*Listener) bool) []*Listener {
	for _, name := range append([]string{host}, slices.Collect(hosts.Wider(host))...) {
		found := slices.DeleteFunc(slices.Clone(byName[name]), func(l *Listener) bool { return !fits(l) })
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// widest says that of two names that cover each other the wider one comes first.
func widest(a, b string) int {
	exact := func(name string) int {
		if name == "" || strings.HasPrefix(name, "*.") {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(exact(a), exact(b)), cmp.Compare(len(a), len(b)))
}
