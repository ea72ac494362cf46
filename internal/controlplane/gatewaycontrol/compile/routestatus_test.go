package compile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const oneRoute = services + oneGateway + `
kind: HTTPRoute
metadata: {name: r, generation: 7}
spec: {parentRefs: [{name: g, group: gateway.networking.k8s.io, kind: Gateway}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`

// What other controllers say stays. What kedge said about a parent that is gone goes away.
func TestStatusKeepsOthers(t *testing.T) {
	w := newWorld(t, oneRoute)
	others := gwv1.RouteParentStatus{
		ParentRef: gwv1.ParentReference{Name: "g"}, ControllerName: "example.com/other",
		Conditions: []metav1.Condition{{Type: "Accepted", Status: "Unknown", Reason: "Asleep"}},
	}
	gone := gwv1.RouteParentStatus{ParentRef: gwv1.ParentReference{Name: "gone"}, ControllerName: Controller}
	w.in.HTTPRoutes[0].Status.Parents = []gwv1.RouteParentStatus{gone, others}
	result := w.compile()
	expectRoutes(t, result, "HTTPRoute/r parents=2", "HTTPRoute/r g Accepted=Unknown Asleep", "HTTPRoute/r g Accepted=True Accepted", "!HTTPRoute/r gone")

	// Without a Gateway, there is nothing left to say.
	w.in.Gateways = nil
	expectRoutes(t, w.compile(), "HTTPRoute/r parents=1", "HTTPRoute/r g Accepted=Unknown Asleep")

	w.in.HTTPRoutes[0].Status.Parents = []gwv1.RouteParentStatus{others}
	if status := w.compile().HTTPRoutes; len(status) > 0 {
		t.Errorf("the route is none of kedge's business, but has the status %v", status)
	}
}

// A condition keeps its time as long as its status does, and always has the generation.
func TestStatusKeepsTimes(t *testing.T) {
	w := newWorld(t, oneRoute)
	route := w.in.HTTPRoutes[0]
	earlier := metav1.NewTime(time.Unix(1_600_000_000, 0))
	route.Status.Parents = []gwv1.RouteParentStatus{{
		ParentRef: gwv1.ParentReference{Name: "g", Namespace: ptr.To[gwv1.Namespace]("infra")}, ControllerName: Controller,
		Conditions: []metav1.Condition{
			{Type: "example.com/Blessed", Status: "True", Reason: "Blessed", LastTransitionTime: earlier},
			{Type: "ResolvedRefs", Status: "False", Reason: "BackendNotFound", LastTransitionTime: earlier},
			{Type: "Accepted", Status: "True", Reason: "Accepted", LastTransitionTime: earlier, ObservedGeneration: 6},
			{Type: "PartiallyInvalid", Status: "True", Reason: "UnsupportedValue", LastTransitionTime: earlier},
		},
	}}
	conditions := w.compile().HTTPRoutes[route].Parents[0].Conditions
	var got []string
	for _, condition := range conditions {
		got = append(got, fmt.Sprintf("%s=%s %d %v", condition.Type, condition.Status, condition.ObservedGeneration, condition.LastTransitionTime.Equal(&earlier)))
	}
	want := "example.com/Blessed=True 0 true, ResolvedRefs=True 7 false, Accepted=True 7 true"
	if strings.Join(got, ", ") != want {
		t.Errorf("the conditions are %v, want %s", got, want)
	}
}

// The status has at most 32 parents, or else the API server takes none.
func TestStatusHasRoom(t *testing.T) {
	w := newWorld(t, oneRoute)
	for i := range 32 {
		w.in.HTTPRoutes[0].Status.Parents = append(w.in.HTTPRoutes[0].Status.Parents, gwv1.RouteParentStatus{
			ParentRef: gwv1.ParentReference{Name: gwv1.ObjectName(fmt.Sprint("g-", i))}, ControllerName: "example.com/other",
		})
	}
	w.in.HTTPRoutes[0].Status.Parents[3].ControllerName = Controller
	expectRoutes(t, w.compile(), "HTTPRoute/r parents=32", "HTTPRoute/r g Accepted=True Accepted")
	w.in.HTTPRoutes[0].Status.Parents[3].ControllerName = "example.com/other"
	if parents := w.compile().HTTPRoutes[w.in.HTTPRoutes[0]]; parents != nil && len(parents.Parents) > 32 {
		t.Errorf("there are %d parents", len(parents.Parents))
	}
}

// A route can have hundreds of faults. The message of a condition tells some of them.
func TestStatusIsShort(t *testing.T) {
	var refs []string
	for i := range 16 {
		refs = append(refs, fmt.Sprintf("{name: missing-%d, port: 80}, {name: missing-%d, port: 80}", i, i))
	}
	result := newWorld(t, oneGateway+`
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [`+strings.Join(refs, ", ")+`]}]}`).compile()
	message := messageOf(t, result, "r", gwv1.RouteConditionResolvedRefs)
	if strings.Count(message, "missing") != maxFaults || !strings.HasSuffix(message, "; and 16 more") {
		t.Errorf("the message is %q", message)
	}
}
