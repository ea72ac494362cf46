package gateway

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/ingress"
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
	made, refusals := sound(&state, nil)
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

// TestRoom has more than an update may have. What nodes have already stays.
func TestRoom(t *testing.T) {
	routes := func(size, count int) map[string]*routing.Route {
		all := map[string]*routing.Route{}
		for i := range count {
			name := fmt.Sprintf("HTTPRoute/shop/%03d", i)
			all[name] = &routing.Route{Name: name, Rules: []routing.Rule{{Auth: &routing.BasicAuth{Users: strings.Repeat("x", size)}}}}
		}
		return all
	}
	before, refusals := sound(&routing.State{Routes: routes(1<<20, 20)}, nil)
	if len(before.Routes) != 20 || len(refusals) != 0 {
		t.Fatalf("there are %d routes and %v", len(before.Routes), refusals)
	}
	wanted := before.With(routing.Update{Whole: true, State: routing.State{Routes: routes(1<<20, 40)}})
	grown := routing.Route{Name: "HTTPRoute/shop/000", Rules: []routing.Rule{
		{Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}}, {Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}},
		{Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}}, {Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}},
		{Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}}, {Auth: &routing.BasicAuth{Users: strings.Repeat("x", 1<<20)}},
	}}
	wanted.Routes["HTTPRoute/shop/000"] = &grown
	now, refusals := sound(wanted, before)
	for name, r := range before.Routes {
		if now.Routes[name] != r {
			t.Errorf("nodes lose %s", name)
		}
	}
	if len(now.Routes)+len(refusals) != 41 || len(now.Routes) > 24 || !strings.Contains(refusals[0].String(), "there is no room") {
		t.Errorf("there are %d routes and %d refusals", len(now.Routes), len(refusals))
	}
}

// TestLargeListeners has a socket of many users, one of whom has large certificates.
func TestLargeListeners(t *testing.T) {
	socket := &routing.Socket{Transport: routing.TCP, Port: 30443, PublicPort: 443, Listeners: []routing.Listener{{Name: "old"}}}
	for i := range 100 {
		socket.Listeners = append(socket.Listeners, routing.Listener{Name: fmt.Sprint("large-", i), ClientAuthorities: strings.Repeat("x", 200<<10)})
	}
	socket.Listeners = append(socket.Listeners, routing.Listener{Name: "small"})
	refusals := boundListeners(map[string]*routing.Socket{"a": socket})
	size := sizeOf(reflect.ValueOf(socket))
	if last := len(socket.Listeners) - 1; socket.Listeners[0].Name != "old" || socket.Listeners[last].Name != "small" || size > maxSocket+1000 || len(refusals)+last != 101 {
		t.Errorf("there are %d listeners of %d bytes, and %d refusals", last, size, len(refusals))
	}
}

// TestRefusals has routes and an Ingress that nodes would refuse. Their statuses say so.
func TestRefusals(t *testing.T) {
	route := &gwv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bad"}}
	object := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "i"}}
	c := &compiled{
		gateways: &compile.Result{HTTPRoutes: map[*gwv1.HTTPRoute]*gwv1.HTTPRouteStatus{
			route: {RouteStatus: gwv1.RouteStatus{Parents: []gwv1.RouteParentStatus{{ControllerName: compile.Controller}, {ControllerName: "example.com/other"}}}},
		}},
		ingresses: &ingress.Result{Served: map[*netv1.Ingress]bool{object: true}},
	}
	c.adopt(unsound(), nil)
	faults := faultsOf(c)
	if len(faults) != 2 || faults[0].reason != "UnsupportedValue" || !strings.Contains(faults[0].message, "invalid size of a body") ||
		faults[1].object != object || faults[1].reason != "NotServed" {
		t.Errorf("the faults are %v", faults)
	}
	if theirs := c.gateways.HTTPRoutes[route].Parents[1].Conditions; len(theirs) != 0 {
		t.Errorf("the conditions of somebody else are %v", theirs)
	}
	first := c.state
	if c.adopt(unsound(), first); len(routing.Diff(first, c.state).Routes) != 0 {
		t.Errorf("what is the same again differs by %+v", routing.Diff(first, c.state))
	}
}
