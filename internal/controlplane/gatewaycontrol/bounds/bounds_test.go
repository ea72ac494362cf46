package bounds

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// unsound has values that nodes do not accept, beside others.
func unsound() routing.State {
	bad := []routing.Rule{{MaxBody: -1}}
	return routing.State{
		Sockets: map[string]*routing.Socket{
			"30080/tcp": {Transport: routing.TCP, Port: 30080, PublicPort: 80, Listeners: []routing.Listener{
				{Name: "shop/door/http", Protocol: routing.HTTP}, {Name: "shop/door/bad", Protocol: routing.HTTP, Hostname: "a b"},
			}},
			"0/tcp": {Transport: routing.TCP},
		},
		Routes: map[string]*routing.Route{
			"HTTPRoute/shop/bad":  {Name: "HTTPRoute/shop/bad", Hostnames: []string{"a.example"}, Rules: bad},
			"HTTPRoute/shop/web":  {Name: "HTTPRoute/shop/web"},
			"TCPRoute/shop/bad":   {Name: "TCPRoute/shop/bad", Stream: &routing.Split{Targets: []routing.Target{{Weight: -1}}}},
			"HTTPRoute/shop/host": {Name: "HTTPRoute/shop/host", Hostnames: []string{"a b"}},
			"Ingress/shop/i/x":    {Name: "Ingress/shop/i", Rules: bad},
		},
		Backends:     map[string]*routing.Backend{"bad": {Name: "a b"}, "good": {Name: "good"}},
		Certificates: map[string]*routing.Certificate{"bad": {}, "good": {Chain: "c", Key: "k"}, "a name": {Chain: "c", Key: "k"}},
	}
}

func TestSound(t *testing.T) {
	state := unsound()
	made, refusals := Sound(&state, nil, nobody)
	if err := (&routing.Update{Whole: true, State: *made}).Check(); err != nil {
		t.Errorf("nodes refuse it: %v", err)
	}
	if len(refusals) != 9 {
		t.Errorf("the refusals are %v", refusals)
	}
	if listeners := made.Sockets["30080/tcp"].Listeners; len(made.Sockets) != 1 || len(listeners) != 1 || listeners[0].Name != "shop/door/http" {
		t.Errorf("the sockets are %+v", made.Sockets)
	}
	if r := made.Routes["HTTPRoute/shop/bad"]; r == nil || r.Hostnames[0] != "a.example" || r.Rules[0].Filters[0].Fault != 500 {
		t.Errorf("the bad route is %+v", r)
	}
	if r := made.Routes["TCPRoute/shop/bad"]; r == nil || len(r.Stream.Targets) != 0 {
		t.Errorf("the bad route of connections is %+v", r)
	}
	if made.Routes["HTTPRoute/shop/host"] != nil || made.Routes["HTTPRoute/shop/web"] != state.Routes["HTTPRoute/shop/web"] {
		t.Errorf("the routes are %+v", made.Routes)
	}
	if len(made.Backends) != 1 || len(made.Certificates) != 1 {
		t.Errorf("the backends are %+v, the certificates %+v", made.Backends, made.Certificates)
	}
}

// nobody says that no namespace has a host.
func nobody(string) string { return "" }

// TestListenersOfTheSharedFront has listeners with the name of the shared front. Each counts for the
// namespace that has caused it.
func TestListenersOfTheSharedFront(t *testing.T) {
	state := &routing.State{Routes: map[string]*routing.Route{"Ingress/shop/web/a": {Name: "Ingress/shop/web"}}}
	shared := front.Shared.String()
	for want, listener := range map[string]routing.Listener{
		"infra":       {Name: "infra/door/http"},
		"secured":     {Name: shared + "/https", Certificates: []string{"Secret/secured/tls"}, Routes: []string{"Ingress/shop/web/a"}},
		"shop":        {Name: shared + "/http", Routes: []string{"gone", "Ingress/shop/web/a"}},
		"tenant":      {Name: shared + "/nobody", Hostname: "tenant.example"},
		"kube-system": {Name: shared + "/http"},
	} {
		got := namespaceOfListener(state, &listener, func(host string) string { return strings.TrimSuffix(host, ".example") })
		if got != want {
			t.Errorf("%+v is of %s, want %s", listener, got, want)
		}
	}
}

// largeRoutes returns routes of a namespace, each younger than the one before.
func largeRoutes(namespace string, size, count int) map[string]*routing.Route {
	all := map[string]*routing.Route{}
	for i := range count {
		name := fmt.Sprintf("HTTPRoute/%s/%03d", namespace, i)
		all[name] = &routing.Route{
			Name: name, Created: time.Unix(int64(1000-i), 0), Hostnames: []string{"a.example"},
			Rules: []routing.Rule{{Auth: &routing.BasicAuth{Users: strings.Repeat("x", size)}}},
		}
	}
	return all
}

// TestRoom has a namespace with more than fits, beside others. It loses its newest routes, and the
// others lose nothing, also if they change.
func TestRoom(t *testing.T) {
	state := &routing.State{Routes: largeRoutes("tenant", 1<<20, 40), Backends: map[string]*routing.Backend{
		"shop/web:80":   {Name: "shop/web:80", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.7:80")}},
		"tenant/web:80": {Name: "tenant/web:80", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.8:80")}},
	}}
	maps.Copy(state.Routes, largeRoutes("shop", 1<<20, 3))
	made, refusals := Sound(state, nil, nobody)
	whole := 0
	for i := range 40 {
		name := fmt.Sprintf("HTTPRoute/tenant/%03d", 39-i) // the oldest first
		switch got := made.Routes[name]; {
		case got == state.Routes[name] && whole == i:
			whole++
		case got == nil || got == state.Routes[name] || got.Hostnames[0] != "a.example" || got.Rules[0].Filters[0].Fault != 500:
			t.Errorf("%s is %v, after %d whole ones", name, got != nil, whole)
		}
	}
	if whole < 19 || whole > 20 || len(refusals) != 40-whole || !strings.Contains(refusals[0].String(), "there is no room") {
		t.Errorf("%d routes are whole, and %d are refused", whole, len(refusals))
	}
	for name, route := range largeRoutes("shop", 1<<20, 3) {
		if !reflect.DeepEqual(made.Routes[name], route) {
			t.Errorf("another namespace loses %s", name)
		}
	}
	// Endpoints of both namespaces follow, whatever nodes had before.
	state.Backends = map[string]*routing.Backend{
		"shop/web:80":   {Name: "shop/web:80", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.17:80")}},
		"tenant/web:80": {Name: "tenant/web:80"},
	}
	next, _ := Sound(made.With(routing.Update{Whole: true, State: *state}), made, nobody)
	if !maps.EqualFunc(next.Backends, state.Backends, func(a, b *routing.Backend) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("the backends are %+v", next.Backends)
	}
	update := routing.Update{Whole: true, State: *next}
	if text, err := json.Marshal(update); err != nil || len(text) > maxState {
		t.Errorf("the update has %d bytes, %v", len(text), err)
	}
}

// TestManyNamespaces has more namespaces with large values than fit. Each gets the same.
func TestManyNamespaces(t *testing.T) {
	state := &routing.State{Routes: largeRoutes("small", 1<<10, 20)}
	for i := range 50 {
		maps.Copy(state.Routes, largeRoutes(fmt.Sprint("large-", i), 200<<10, 5))
	}
	made, _ := Sound(state, nil, nobody)
	whole := map[string]int{}
	for name, route := range made.Routes {
		if route == state.Routes[name] {
			whole[strings.Split(name, "/")[1]]++
		}
	}
	for i := range 50 {
		if whole[fmt.Sprint("large-", i)] != 2 {
			t.Errorf("the namespaces have %v whole routes", whole)
			break
		}
	}
	if whole["small"] != 20 {
		t.Errorf("a small namespace keeps %d of 20 routes", whole["small"])
	}
}

// TestBackendThatIsRefused has a backend that nodes accepted before, and now do not. Its endpoints may
// be somebody else's by now.
func TestBackendThatIsRefused(t *testing.T) {
	before := &routing.State{Backends: map[string]*routing.Backend{"a": {Name: "shop/a:80", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.7:80")}}}}
	bad := &routing.State{Backends: map[string]*routing.Backend{"a": {Name: "shop/a:80", Protocol: "x"}}}
	if made, refusals := Sound(bad, before, nobody); len(made.Backends) != 0 || len(refusals) != 1 {
		t.Errorf("the backends are %+v, and %v", made.Backends, refusals)
	}
}

// TestLargeListeners has a socket of several namespaces. The oldest one has large certificates.
func TestLargeListeners(t *testing.T) {
	socket := &routing.Socket{Transport: routing.TCP, Port: 30443, PublicPort: 443}
	for i := range 200 {
		socket.Listeners = append(socket.Listeners, routing.Listener{
			Name: fmt.Sprint("tenant/g/large-", i), Protocol: routing.HTTPS, ClientAuthorities: strings.Repeat("x", 200<<10), Routes: []string{"HTTPRoute/shop/a", "HTTPRoute/shop/b"},
		})
	}
	socket.Listeners = append(socket.Listeners, routing.Listener{Name: "shop/g/small", Protocol: routing.HTTPS})
	state := &routing.State{
		Sockets: map[string]*routing.Socket{"30443/tcp": socket},
		Routes:  map[string]*routing.Route{"HTTPRoute/shop/a": {Name: "HTTPRoute/shop/a"}},
	}
	made, refusals := Sound(state, nil, nobody)
	kept := made.Sockets["30443/tcp"].Listeners
	size := sizeOf(reflect.ValueOf(made.Sockets["30443/tcp"]))
	if last := len(kept) - 1; kept[0].Name != "tenant/g/large-0" || kept[last].Name != "shop/g/small" || size > maxState || len(refusals)+last != 200 || last < 100 {
		t.Errorf("there are %d listeners of %d bytes, and %d refusals", len(kept), size, len(refusals))
	}
	if !slices.Equal(kept[0].Routes, []string{"HTTPRoute/shop/a"}) || len(socket.Listeners) != 201 {
		t.Errorf("a listener has the routes %v", kept[0].Routes)
	}
}

func TestShare(t *testing.T) {
	for _, test := range []struct {
		needs map[string]int
		want  int
	}{
		{nil, math.MaxInt},
		{map[string]int{"a": 50, "b": 50}, math.MaxInt},
		{map[string]int{"a": 101}, 100},
		{map[string]int{"a": 10, "b": 200}, 90},
		{map[string]int{"a": 10, "b": 200, "c": 60}, 45},
		{map[string]int{"a": 40, "b": 30, "c": 60}, 35},
	} {
		if got := share(test.needs, 100); got != test.want {
			t.Errorf("of %v each gets %d, want %d", test.needs, got, test.want)
		}
	}
}
