package statuses

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestPatch(t *testing.T) {
	const earlier, now = "2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"
	at, err := time.Parse(time.RFC3339, now)
	if err != nil {
		t.Fatal(err)
	}
	before := metav1.NewTime(at.AddDate(-10, 0, 0))
	condition := func(status metav1.ConditionStatus, since metav1.Time) metav1.Condition {
		return metav1.Condition{Type: "Accepted", Status: status, Reason: "R", Message: "m", LastTransitionTime: since}
	}
	for _, test := range []struct {
		name          string
		before, after any
		want          string // empty for no patch
	}{
		{"only a time", &gwv1.GatewayStatus{Conditions: []metav1.Condition{condition("True", before)}}, &gwv1.GatewayStatus{Conditions: []metav1.Condition{condition("True", metav1.Time{})}}, ""},
		{"an empty list", &gwv1.GatewayStatus{}, &gwv1.GatewayStatus{Conditions: []metav1.Condition{}, Addresses: []gwv1.GatewayStatusAddress{}}, ""},
		{
			"a new time and an old one",
			&gwv1.GatewayStatus{Conditions: []metav1.Condition{condition("True", before)}},
			&gwv1.GatewayStatus{Conditions: []metav1.Condition{condition("True", before), condition("False", metav1.Time{})}},
			`{"conditions":[{"lastTransitionTime":"` + earlier + `","message":"m","reason":"R","status":"True","type":"Accepted"},{"lastTransitionTime":"` + now + `","message":"m","reason":"R","status":"False","type":"Accepted"}]}`,
		},
		{
			"addresses that go",
			&gwv1.GatewayStatus{Addresses: []gwv1.GatewayStatusAddress{{Value: "192.0.2.1"}}},
			&gwv1.GatewayStatus{Conditions: []metav1.Condition{condition("True", before)}},
			`{"addresses":null,"conditions":[{"lastTransitionTime":"` + earlier + `","message":"m","reason":"R","status":"True","type":"Accepted"}]}`,
		},
		{
			"a list that is required",
			&gwv1.HTTPRouteStatus{RouteStatus: gwv1.RouteStatus{Parents: []gwv1.RouteParentStatus{{ControllerName: "kedge.dev/gateway"}}}},
			&gwv1.HTTPRouteStatus{}, `{"parents":[]}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			patch, err := patchOf(test.before, test.after, at)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if patch != nil {
				encoded, err := json.Marshal(patch)
				if err != nil {
					t.Fatal(err)
				}
				got = string(encoded)
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
