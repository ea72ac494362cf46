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
// has nothing there, nobody answers. Partition changes nothing that it gets.
func Partition(fronts []Front, owners *hosts.Owners) []Front {
	fronts = slices.Clone(fronts)
	names := owners.Names()
	for i := range fronts {
		if fronts[i].Name != Shared {
			continue
		}
		fronts[i].Ports = slices.Clone(fronts[i].Ports)
		for j := range fronts[i].Ports {
			port := &fronts[i].Ports[j]
			port.Listeners = partition(port.Listeners, names, owners)
		}
	}
	return fronts
}

// partition adds the listeners of hosts to those of a port. It begins with the widest names, because
// a listener that was added would also get the requests to narrower ones.
func partition(listeners []Listener, names []string, owners *hosts.Owners) []Listener {
	own, all := map[string][]*Listener{}, map[string][]*Listener{}
	for i := range listeners {
		if l := &listeners[i]; l.Protocol != routing.RawTCP && l.Protocol != routing.RawUDP {
			own[l.Hostname] = append(own[l.Hostname], l)
			all[l.Hostname] = append(all[l.Hostname], l)
		}
	}
	made := slices.Clone(listeners)
	for _, name := range slices.SortedStableFunc(slices.Values(names), widest) {
		admits := func(l *Listener) bool { return owners.Admits(l.Namespace, name) }
		would := nearest(all, name, func(*Listener) bool { return true })
		if all[name] != nil || !slices.ContainsFunc(would, func(l *Listener) bool { return !admits(l) }) {
			continue
		}
		shall := nearest(own, name, admits)
		if len(shall) == 0 {
			shall = []*Listener{{Listener: routing.Listener{Name: Shared.String() + "/nobody", Protocol: would[0].Protocol}}}
		}
		for _, l := range shall {
			narrow := *l
			narrow.Hostname = name
			made = append(made, narrow)
			all[name] = append(all[name], &narrow)
		}
	}
	return made
}

// nearest returns the listeners that fit of the most specific name that covers a host and has some.
func nearest(byName map[string][]*Listener, host string, fits func(*Listener) bool) (found []*Listener) {
	for wider := range hosts.Wider(host) {
		for _, l := range byName[wider] {
			if fits(l) {
				found = append(found, l)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found
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
