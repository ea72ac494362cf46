package routing

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestWith merges updates into states. Names stand for sockets, and numbers for their ports.
func TestWith(t *testing.T) {
	type ports = map[string]uint16
	state := func(p ports) *State {
		s := &State{}
		for name, port := range p {
			if s.Sockets == nil {
				s.Sockets = map[string]*Socket{}
			}
			if s.Sockets[name] = nil; port > 0 {
				s.Sockets[name] = &Socket{Port: port}
			}
		}
		return s
	}
	for name, test := range map[string]struct {
		before, update ports
		whole          bool
		want           ports
		// same says that the state is the same pointer as before.
		same bool
	}{
		"nothing":              {ports{"a": 1}, nil, false, ports{"a": 1}, true},
		"a new one":            {ports{"a": 1}, ports{"b": 2}, false, ports{"a": 1, "b": 2}, false},
		"another value":        {ports{"a": 1}, ports{"a": 2}, false, ports{"a": 2}, false},
		"the same value":       {ports{"a": 1}, ports{"a": 1}, false, ports{"a": 1}, true},
		"one is gone":          {ports{"a": 1, "b": 2}, ports{"a": 0}, false, ports{"b": 2}, false},
		"one was not there":    {ports{"b": 2}, ports{"a": 0}, false, ports{"b": 2}, true},
		"everything":           {ports{"a": 1, "b": 2}, ports{"b": 2, "c": 3}, true, ports{"b": 2, "c": 3}, false},
		"everything, the same": {ports{"a": 1}, ports{"a": 1}, true, ports{"a": 1}, true},
		"everything is gone":   {ports{"a": 1}, nil, true, nil, false},
		"none in everything":   {ports{"a": 1}, ports{"a": 0}, true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, update := state(test.before), Update{Whole: test.whole, State: *state(test.update)}
			beforeText, updateText := text(t, before), text(t, update)
			now := before.With(update)
			if got, want := text(t, now), text(t, state(test.want)); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if (now == before) != test.same {
				t.Errorf("the state is the same pointer: %t", now == before)
			}
			for name, socket := range now.Sockets {
				if test.before[name] == test.want[name] && before.Sockets[name] != socket {
					t.Errorf("%s is another pointer", name)
				}
			}
			if text(t, before) != beforeText || text(t, update) != updateText {
				t.Error("With has changed its arguments")
			}
		})
	}
	var none *State
	if now := none.With(Update{}); now == nil || len(now.Sockets) > 0 {
		t.Errorf("from nothing comes %v", now)
	}
}

// TestDiff wants the update to have what has changed, and nothing else.
func TestDiff(t *testing.T) {
	a, b := good().State, good().State
	b.Backends["shop/web:80"].Endpoints = nil
	delete(b.Routes, "TCPRoute/shop/db")
	b.Certificates["new"] = &Certificate{Chain: "PEM", Key: "PEM"}
	got := Diff(&a, &b)
	if want := `{"routes":{"TCPRoute/shop/db":null},"backends":{"shop/web:80":` + text(t, b.Backends["shop/web:80"]) + `},"certificates":{"new":{"chain":"PEM","key":"PEM"}}}`; text(t, got) != want {
		t.Errorf("got %s, want %s", text(t, got), want)
	}
	c := good().State
	if got := Diff(&a, &c); !got.IsEmpty() {
		t.Errorf("of equal states the difference is %s", text(t, got))
	}
	if got := Diff(nil, &b); !got.Whole || got.IsEmpty() || text(t, got.State) != text(t, b) {
		t.Errorf("from nothing it is %s", text(t, got))
	}
}

// TestSize wants the state of 1,000 routes, each with a Service of its own, to be small in
// JSON, and a change of an endpoint to be tiny.
func TestSize(t *testing.T) {
	large := State{Sockets: map[string]*Socket{}, Routes: map[string]*Route{}, Backends: map[string]*Backend{}}
	listener := Listener{Name: "default/gateway/http", Protocol: HTTP}
	for i := range 1000 {
		route, backend := fmt.Sprintf("HTTPRoute/default/route-%d", i), fmt.Sprintf("default/service-%d:8080", i)
		listener.Routes = append(listener.Routes, route)
		large.Routes[route] = &Route{
			Name: route, Created: time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC), Hostnames: []string{fmt.Sprintf("host-%d.example.com", i)},
			Rules: []Rule{{Matches: []Match{{PathType: PathPrefix, Path: "/"}}, Split: Split{Targets: []Target{{Backend: backend, Weight: 1}}}}},
		}
		endpoint := func(host byte) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, byte(i), host}), 8080)
		}
		large.Backends[backend] = &Backend{Name: backend, Endpoints: []netip.AddrPort{endpoint(1), endpoint(2), endpoint(3)}}
	}
	large.Sockets["s"] = &Socket{Transport: TCP, Port: 30080, PublicPort: 80, Listeners: []Listener{listener}}
	whole := Diff(nil, &large)
	if err := whole.Check(); err != nil {
		t.Fatal(err)
	}
	if size := len(text(t, whole)); size > 512<<10 {
		t.Errorf("1,000 routes take %d bytes", size)
	}
	changed := *large.Backends["default/service-7:8080"]
	changed.Endpoints = changed.Endpoints[:2]
	next := large.With(Update{State: State{Backends: map[string]*Backend{"default/service-7:8080": &changed}}})
	if size := len(text(t, Diff(&large, next))); size > 200 {
		t.Errorf("an endpoint takes %d bytes", size)
	}
}

// text returns a value as JSON.
func text(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}
