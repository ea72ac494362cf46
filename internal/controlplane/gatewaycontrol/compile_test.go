package gatewaycontrol

import (
	"strings"
	"testing"
	"time"

	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
)

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
	bad := []routing.Rule{{MaxBody: -1}}
	unsound := routing.State{Routes: map[string]*routing.Route{
		"HTTPRoute/shop/bad": {Name: "HTTPRoute/shop/bad", Hostnames: []string{"a.example"}, Rules: bad},
		"Ingress/shop/i/x":   {Name: "Ingress/shop/i", Rules: bad},
	}}
	c.adopt(unsound, nil)
	faults := c.allFaults()
	if len(faults) != 2 || faults[0].Reason != "UnsupportedValue" || !strings.Contains(faults[0].Message, "invalid size of a body") ||
		faults[1].Object != object || faults[1].Reason != "NotServed" {
		t.Errorf("the faults are %v", faults)
	}
	if theirs := c.gateways.HTTPRoutes[route].Parents[1].Conditions; len(theirs) != 0 {
		t.Errorf("the conditions of somebody else are %v", theirs)
	}
	first := c.state
	if c.adopt(unsound, first); len(routing.Diff(first, c.state).Routes) != 0 {
		t.Errorf("what is the same again differs by %+v", routing.Diff(first, c.state))
	}
}

// TestPause is about how often everything is worked out while objects change all the time.
func TestPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: restTime, time.Millisecond: restTime, 20 * time.Millisecond: 200 * time.Millisecond, time.Second: mostRest, time.Hour: mostRest,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("after a run of %s, the next one begins %s later, want %s", took, got, want)
		}
	}
}
