// Package bounds leaves out of what nodes get what they would not accept, and what is too much. A node
// refuses a whole update if it does not accept one value of it, or if the update is too large. So one
// object would keep all nodes from what everybody else wants. The packages compile and ingress report
// such objects in their statuses. This package is for those that they miss.
package bounds

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Refusal is a value that nodes do not get, or not as it is.
type Refusal struct {
	Kind, Name string
	Why        string
}

func (r Refusal) String() string { return fmt.Sprintf("%s %s: %s", r.Kind, r.Name, r.Why) }

// Sound returns a State without what nodes would refuse. before is the State that nodes have, or nil:
// what is the same pointer there is accepted. Nothing of before stays that is not in state. A backend
// that nodes would refuse has no endpoints any more, because somebody else may have their addresses.
// owner returns the namespace that has a host, or an empty name.
func Sound(state, before *routing.State, owner func(host string) string) (*routing.State, []Refusal) {
	if before == nil {
		before = &routing.State{}
	}
	made := &routing.State{}
	refusals := slices.Concat(
		certificateValues.admit(made, state, before),
		socketValues.admit(made, state, before),
		backendValues.admit(made, state, before),
		routeValues.admit(made, state, before),
	)
	made, tooMuch := fit(made, owner)
	refusals = append(refusals, tooMuch...)
	slices.SortFunc(refusals, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Why, b.Why))
	})
	return made, refusals
}

// values are those of one kind in a State.
type values[V any] struct {
	kind string
	in   func(*routing.State) *map[string]*V
	// mend makes what nodes get of a value that they would not accept. It is nil if that is nothing.
	mend func(*V) *V
}

var (
	certificateValues = values[routing.Certificate]{"certificate", func(s *routing.State) *map[string]*routing.Certificate { return &s.Certificates }, nil}
	socketValues      = values[routing.Socket]{"socket", func(s *routing.State) *map[string]*routing.Socket { return &s.Sockets }, soundListeners}
	backendValues     = values[routing.Backend]{"backend", func(s *routing.State) *map[string]*routing.Backend { return &s.Backends }, nil}
	routeValues       = values[routing.Route]{"route", func(s *routing.State) *map[string]*routing.Route { return &s.Routes }, closedRoute}
)

// admit puts into made the values of state that nodes accept, and returns what they refuse.
func (v values[V]) admit(made, state, before *routing.State) (refusals []Refusal) {
	all, known, accepted := *v.in(state), *v.in(before), map[string]*V{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		if value != known[name] {
			if err := v.check(name, value); err != nil {
				refusals = append(refusals, Refusal{v.kind, name, fmt.Sprintf("nodes would not accept it: %v", err)})
				if value = v.mended(name, value); value == nil {
					continue
				}
			}
		}
		accepted[name] = value
	}
	*v.in(made) = accepted
	return refusals
}

// mended returns what nodes get of a value that they would not accept, or nil.
func (v values[V]) mended(name string, value *V) *V {
	if v.mend == nil {
		return nil
	}
	if value = v.mend(value); v.check(name, value) != nil {
		return nil
	}
	return value
}

// check returns why nodes would not accept a value.
func (v values[V]) check(name string, value *V) error {
	var update routing.Update
	*v.in(&update.State) = map[string]*V{name: value}
	return update.Check()
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
