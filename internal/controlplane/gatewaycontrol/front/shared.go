package front

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
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
	names := owners.Names()
	if len(names) == 0 {
		return fronts
	}
	fronts = slices.Clone(fronts)
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
	p := newSharedPort(listeners, routes, owners)
	made := slices.Clone(listeners)
	for _, name := range slices.SortedStableFunc(slices.Values(names), widest) {
		would := nearest(name, func(at string) []*Listener { return p.all[at] })
		if len(would) == 0 {
			continue
		}
		shall := p.serving(name)
		if len(shall) == 0 {
			shall = []*Listener{{Listener: routing.Listener{Name: Shared.String() + nobody, Protocol: would[0].Protocol}}}
		}
		if isSame(would, shall) {
			continue
		}
		p.all[name] = shall
		for _, l := range shall {
			if l.Hostname != name {
				made = append(made, p.narrow(l, name))
			}
		}
	}
	// Of listeners with one host name, nodes use the settings of the first: those of the owner.
	var own, others []Listener
	for i := range made {
		if l := &made[i]; owners.Owns(l.Namespace, l.Hostname) {
			own = append(own, *l)
		} else {
			others = append(others, *l)
		}
	}
	return append(own, others...)
}

// sharedPort has the listeners of a port by what partition asks for. Nothing looks at all tenants for each
// host: one tenant may have thousands of hosts, and let all others in.
type sharedPort struct {
	owners *hosts.Owners
	routes map[string]*routing.Route
	// own has the listeners by namespace and host name, and all by host name: also those that were
	// added, as what they are copies of.
	own map[tenantHost][]*Listener
	all map[string][]*Listener
	// order has the namespaces with listeners: the number of each.
	order map[string]int
	// tenants has the namespaces of routes by the hosts of the routes, and fitting the routes of a
	// listener.
	tenants byHost
	fitting map[*Listener]byHost
	// names counts, by namespace, the names of routes in the listeners that were added.
	names map[string]int
}

// maxNames is how many names of routes the listeners may have in all that are added for one namespace. A
// namespace with more is far above its share of what nodes get, which then refuses its newest routes.
const maxNames = 500_000

// tenantHost is a host name of a listener, with the namespace.
type tenantHost struct{ namespace, host string }

func newSharedPort(listeners []Listener, routes map[string]*routing.Route, owners *hosts.Owners) *sharedPort {
	p := &sharedPort{
		owners: owners, routes: routes, own: map[tenantHost][]*Listener{}, all: map[string][]*Listener{},
		order: map[string]int{}, tenants: newByHost(), fitting: map[*Listener]byHost{}, names: map[string]int{},
	}
	for i := range listeners {
		l := &listeners[i]
		if l.Protocol == routing.RawTCP || l.Protocol == routing.RawUDP {
			continue
		}
		at := tenantHost{l.Namespace, l.Hostname}
		p.own[at] = append(p.own[at], l)
		p.all[l.Hostname] = append(p.all[l.Hostname], l)
		if _, known := p.order[l.Namespace]; !known {
			p.order[l.Namespace] = len(p.order)
		}
		for _, name := range l.Routes {
			p.tenants.add(routes[name], l.Namespace)
		}
	}
	return p
}

// serving returns the listeners that shall get the requests to a host that somebody has: the most
// specific ones of the owner, and of each other namespace that may serve the host and has routes for it.
func (p *sharedPort) serving(name string) (shall []*Listener) {
	namespaces := slices.DeleteFunc(p.tenants.fitting(name), func(namespace string) bool { return !p.owners.Admits(namespace, name) })
	if owner := p.owners.Owner(name); !slices.Contains(namespaces, owner) {
		namespaces = append(namespaces, owner)
	}
	slices.SortFunc(namespaces, func(a, b string) int { return cmp.Compare(p.order[a], p.order[b]) })
	for _, namespace := range namespaces {
		shall = append(shall, nearest(name, func(at string) []*Listener { return p.own[tenantHost{namespace, at}] })...)
	}
	return shall
}

// narrow returns a copy of a listener for one of the hosts that it serves.
func (p *sharedPort) narrow(l *Listener, name string) Listener {
	fitting, known := p.fitting[l]
	if !known {
		fitting = newByHost()
		for _, route := range l.Routes {
			fitting.add(p.routes[route], route)
		}
		p.fitting[l] = fitting
	}
	made := *l
	made.Hostname, made.Routes = name, nil
	if p.names[l.Namespace] < maxNames {
		made.Routes = fitting.fitting(name)
		p.names[l.Namespace] += len(made.Routes)
	}
	return made
}

// byHost has names of routes, or of their namespaces, by the hosts of the routes. So nothing looks at
// all routes for each host.
type byHost struct {
	// whole has the names by the host names of the routes, and below by the wildcards that cover these.
	whole, below map[string][]string
}

func newByHost() byHost { return byHost{map[string][]string{}, map[string][]string{}} }

// add adds a name for the hosts of a route, which may be nil.
func (b byHost) add(route *routing.Route, name string) {
	if route == nil {
		return
	}
	add := func(to map[string][]string, host string) {
		if has := to[host]; len(has) == 0 || has[len(has)-1] != name {
			to[host] = append(has, name)
		}
	}
	if len(route.Hostnames) == 0 {
		add(b.whole, "")
	}
	for _, host := range route.Hostnames {
		add(b.whole, host)
		for wider := range hosts.Wider(host) {
			add(b.below, wider)
		}
	}
}

// fitting returns the names for the routes that requests to a host may go to, sorted. A wildcard has
// all routes below it, too.
func (b byHost) fitting(host string) []string {
	found := slices.Concat(b.whole[host], b.below[host])
	for wider := range hosts.Wider(host) {
		found = append(found, b.whole[wider]...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// isSame tells whether two lists have the same listeners.
func isSame(a, b []*Listener) bool { return len(a) == len(b) && sets.New(a...).Equal(sets.New(b...)) }

// nearest returns the listeners of the most specific name that is a host or covers it, and that has
// some.
func nearest(host string, of func(name string) []*Listener) []*Listener {
	if found := of(host); len(found) > 0 {
		return found
	}
	for wider := range hosts.Wider(host) {
		if found := of(wider); len(found) > 0 {
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
