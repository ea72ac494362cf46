package gateway

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// A node refuses a whole update if it does not accept one value of it, or if the update is too
// large. So one object would keep all nodes from what everybody else wants. The packages compile
// and ingress report such objects in their statuses. What follows is for those that they miss.
const (
	// maxValues is how many values of a kind nodes get. An update may have twice as many: those
	// that are new, and the names of those that are gone.
	maxValues = 50_000
	// maxState is how many bytes of JSON everything may have that nodes get, about. An update may
	// have 32 MiB (package nodestream).
	maxState = 24 << 20
	// maxSocket is how many bytes the listeners of a socket may have. Many objects share a socket.
	maxSocket = 4 << 20
)

// refusal is a value that nodes do not get, or not as it is.
type refusal struct {
	kind, name string
	why        string
}

func (r refusal) String() string { return fmt.Sprintf("%s %s: %s", r.kind, r.name, r.why) }

// sounding makes a State that nodes accept.
type sounding struct {
	refusals []refusal
	// size is about how many bytes the values have so far.
	size int
}

// sound returns a State without what nodes would refuse. before is the State that nodes have,
// or nil: its values are accepted, and they take precedence over new ones if not all fit.
func sound(state, before *routing.State) (*routing.State, []refusal) {
	if before == nil {
		before = &routing.State{}
	}
	s := &sounding{}
	made := &routing.State{}
	rest := []func(){
		admit(s, "certificate", state.Certificates, before.Certificates, &made.Certificates, nil,
			func(name string, c *routing.Certificate) routing.State {
				return routing.State{Certificates: map[string]*routing.Certificate{name: c}}
			}),
		admit(s, "socket", state.Sockets, before.Sockets, &made.Sockets, soundListeners,
			func(name string, c *routing.Socket) routing.State {
				return routing.State{Sockets: map[string]*routing.Socket{name: c}}
			}),
		admit(s, "backend", state.Backends, before.Backends, &made.Backends, nil,
			func(name string, c *routing.Backend) routing.State {
				return routing.State{Backends: map[string]*routing.Backend{name: c}}
			}),
		admit(s, "route", state.Routes, before.Routes, &made.Routes, closedRoute,
			func(name string, c *routing.Route) routing.State {
				return routing.State{Routes: map[string]*routing.Route{name: c}}
			}),
	}
	for _, add := range rest {
		add()
	}
	slices.SortFunc(s.refusals, func(a, b refusal) int { return strings.Compare(a.String(), b.String()) })
	return made, s.refusals
}

// admit takes the values of one kind that nodes have already. It returns a function that adds
// the others, as far as there is room. mend makes what nodes get of a value that they would not
// accept, or returns nil. state makes a State of one value.
func admit[V any](s *sounding, kind string, all, before map[string]*V, into *map[string]*V,
	mend func(*V) *V, state func(string, *V) routing.State) func() {
	made := make(map[string]*V, len(all))
	*into = made
	for name, value := range all {
		if was := before[name]; was != nil {
			s.size += sizeOf(reflect.ValueOf(was))
			if was == value {
				made[name] = value
			}
		}
	}
	refuse := func(name, format string, arguments ...any) {
		s.refusals = append(s.refusals, refusal{kind, name, fmt.Sprintf(format, arguments...)})
	}
	check := func(name string, value *V) error {
		return (&routing.Update{State: state(name, value)}).Check()
	}
	return func() {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			value, was := all[name], before[name]
			if made[name] != nil {
				continue
			}
			if err := check(name, value); err != nil {
				refuse(name, "nodes would not accept it: %v", err)
				if mend == nil {
					continue
				}
				if value = mend(value); value == nil || check(name, value) != nil {
					continue
				}
			}
			more := sizeOf(reflect.ValueOf(value))
			if was != nil {
				more -= sizeOf(reflect.ValueOf(was))
			}
			switch {
			case more > 0 && s.size+more > maxState:
				refuse(name, "there is no room for it: everything that nodes have to know has more than %d MiB. "+
					"Delete Gateways, Ingresses or routes, or give them fewer or smaller values", maxState>>20)
				if was != nil {
					made[name] = was
				}
			case was == nil && len(made) >= maxValues:
				refuse(name, "there are more than %d values of the kind: delete Gateways, Ingresses or routes", maxValues)
			default:
				made[name] = value
				s.size += more
			}
		}
	}
}

// closedRoute returns a route that takes the place of one that nodes do not accept. It answers
// all requests to its host names with an error, and closes all connections. Otherwise, they
// could go where their owner does not want them.
func closedRoute(r *routing.Route) *routing.Route {
	made := &routing.Route{Name: r.Name, Created: r.Created, Hostnames: r.Hostnames, SingleLabel: r.SingleLabel}
	if r.Stream != nil {
		made.Stream = &routing.Split{}
	} else {
		made.Rules = []routing.Rule{{Filters: []routing.Filter{{Fault: 500}}}}
	}
	return made
}

// soundListeners returns a socket without the listeners that nodes do not accept.
func soundListeners(socket *routing.Socket) *routing.Socket {
	made := *socket
	made.Listeners = slices.DeleteFunc(slices.Clone(socket.Listeners), func(l routing.Listener) bool {
		one := *socket
		one.Listeners = []routing.Listener{l}
		return one.Check() != nil
	})
	return &made
}

// boundListeners leaves out the listeners of a socket that make it too large. They are in the
// order of precedence.
func boundListeners(sockets map[string]*routing.Socket) (refusals []refusal) {
	for _, socket := range sockets {
		size := 0
		var kept []routing.Listener
		for _, l := range socket.Listeners {
			more := sizeOf(reflect.ValueOf(l))
			if size+more > maxSocket {
				refusals = append(refusals, refusal{"listener", l.Name, fmt.Sprintf(
					"there is no room for it: the listeners of port %d have more than %d MiB. Use fewer or smaller certificates of authorities",
					socket.PublicPort, maxSocket>>20)})
				continue
			}
			size += more
			kept = append(kept, l)
		}
		socket.Listeners = kept
	}
	return refusals
}

// sizeOf returns about how many bytes a value has in JSON: rather more than less.
func sizeOf(value reflect.Value) int {
	const other = 32 // a name, quotes, a comma, a number
	switch value.Kind() {
	case reflect.String:
		size, text := other, value.String()
		for i := range len(text) {
			if c := text[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				size += 5
			}
		}
		return size + len(text)
	case reflect.Pointer:
		if value.IsNil() {
			return 0
		}
		return sizeOf(value.Elem())
	case reflect.Struct:
		if value.Type().PkgPath() != reflect.TypeFor[routing.State]().PkgPath() {
			return 2 * other // a time or an address
		}
		size := 0
		for i := range value.NumField() {
			if field := value.Field(i); !field.IsZero() {
				size += sizeOf(field)
			}
		}
		return size
	case reflect.Slice:
		size := other
		for i := range value.Len() {
			size += sizeOf(value.Index(i))
		}
		return size
	case reflect.Map:
		size := other
		for key, element := range value.Seq2() {
			size += sizeOf(key) + sizeOf(element)
		}
		return size
	}
	return other
}
