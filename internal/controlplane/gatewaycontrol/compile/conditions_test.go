package compile

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSetCondition(t *testing.T) {
	stamp := metav1.NewTime(time.Unix(1_700_000_000, 0))
	old := []metav1.Condition{
		{Type: "Other", Status: metav1.ConditionTrue, LastTransitionTime: stamp},
		{Type: "Accepted", Status: metav1.ConditionTrue, LastTransitionTime: stamp, ObservedGeneration: 1, Reason: "Old"},
	}
	kept := setCondition(slices.Clone(old), 2, "Accepted", metav1.ConditionTrue, "New", "text")
	if want := (metav1.Condition{
		Type: "Accepted", Status: metav1.ConditionTrue, LastTransitionTime: stamp, ObservedGeneration: 2, Reason: "New", Message: "text",
	}); len(kept) != 2 || kept[1] != want || kept[0] != old[0] {
		t.Errorf("conditions are %+v", kept)
	}
	changed := setCondition(slices.Clone(old), 2, "Accepted", metav1.ConditionFalse, "New", "")
	if !changed[1].LastTransitionTime.IsZero() {
		t.Error("a condition whose status changes keeps its time")
	}
	added := setCondition(slices.Clone(old), 2, "Programmed", metav1.ConditionFalse, "New", strings.Repeat("é", maxMessage))
	if len(added) != 3 || !added[2].LastTransitionTime.IsZero() || len(added[2].Message) != maxMessage {
		t.Errorf("the message has %d bytes", len(added[2].Message))
	}
	if left := removeCondition(slices.Clone(old), "Accepted"); len(left) != 1 || left[0] != old[0] {
		t.Errorf("conditions are %+v", left)
	}
}

// Compile gives the same statuses again, and changes nothing of its input.
func TestStatusesStay(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g, generation: 2}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
status:
  conditions:
  - {type: Accepted, status: Unknown, reason: Pending, message: Waiting for controller, lastTransitionTime: "1970-01-01T00:00:00Z"}
  - {type: example.org/Theirs, status: "True", reason: R, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
  - {type: InsecureFrontendValidationMode, status: "True", reason: R, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
  listeners:
  - name: http
    attachedRoutes: 0
    conditions:
    - {type: Accepted, status: "True", reason: Accepted, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
  - {name: gone, attachedRoutes: 7, conditions: []}`)
	g := w.in.Gateways[0]
	before := g.DeepCopy()
	status := w.serve().Gateways[g]
	if g.Status.Conditions[0] != before.Status.Conditions[0] || len(g.Status.Listeners[0].Conditions) != 1 {
		t.Fatal("the Gateway was changed")
	}
	for _, condition := range status.Conditions {
		if theirs := condition.Type == "example.org/Theirs"; condition.LastTransitionTime.IsZero() == theirs || !theirs && condition.ObservedGeneration != 2 {
			t.Errorf("the condition is %+v", condition)
		}
	}
	if len(status.Conditions) != 4 || len(status.Listeners) != 1 {
		t.Errorf("the status is %+v", status)
	}
	if accepted := status.Listeners[0].Conditions[0]; accepted.Type != "Accepted" || accepted.LastTransitionTime.IsZero() {
		t.Errorf("the condition of the listener is %+v", accepted)
	}
}

// TestFaultsOfTwoListeners has a host that is refused on two listeners for one reason, which is told once.
func TestFaultsOfTwoListeners(t *testing.T) {
	first, second := fault{"A", "the host x belongs to b"}, fault{"A", "the host y belongs to b"}
	if got := first.and(second).and(first).and(second); got.message != first.message+"; "+second.message {
		t.Errorf("got %q", got.message)
	}
}
