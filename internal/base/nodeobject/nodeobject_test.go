package nodeobject

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestIsReady(t *testing.T) {
	pressure := corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}
	for name, test := range map[string]struct {
		conditions []corev1.NodeCondition
		want       bool
	}{
		"nothing said":      {nil, false},
		"another condition": {[]corev1.NodeCondition{pressure}, false},
		"ready":             {[]corev1.NodeCondition{pressure, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, true},
		"not heard of":      {[]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}, false},
	} {
		if got := IsReady(&corev1.Node{Status: corev1.NodeStatus{Conditions: test.conditions}}); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestAnew has the words of a kubelet before and after the start of a process, in one of which the clock is set back.
func TestAnew(t *testing.T) {
	for name, test := range map[string]struct {
		// heard are how long after the start the kubelet wrote, as the clock says.
		heard []time.Duration
		want  bool
	}{
		"nothing":          {nil, false},
		"before":           {[]time.Duration{-time.Hour}, false},
		"before, again":    {[]time.Duration{-time.Hour, -time.Hour}, false},
		"after":            {[]time.Duration{time.Minute}, true},
		"before and after": {[]time.Duration{-time.Hour, time.Minute}, true},
		"set back":         {[]time.Duration{-time.Hour, -2 * time.Hour}, true},
	} {
		start, anew, got := time.Now(), Anew(), false
		for _, heard := range test.heard {
			got = anew(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(start.Add(heard))},
			}}})
		}
		if got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	anew := Anew()
	if anew(&corev1.Node{}) || !anew(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}}}) {
		t.Error("a Node without conditions counts, or its first one does not")
	}
}

// TestAddresses leaves out host names and addresses of other types.
func TestAddresses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "edge"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"},
		{Type: corev1.NodeInternalIP, Address: "::ffff:192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "fd00::1"},
	}}}
	for want, got := range map[string][]netip.Addr{
		"[2001:db8::1 192.0.2.1 fd00::1]": Addresses(node),
		"[192.0.2.1 fd00::1]":             Addresses(node, corev1.NodeInternalIP),
		"[]":                              Addresses(node, corev1.NodeExternalDNS),
	} {
		if fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	if got := InternalIP(node); got != "::ffff:192.0.2.1" {
		t.Errorf("the first InternalIP is %q", got)
	}
	if got := InternalIP(&corev1.Node{}); got != "" {
		t.Errorf("a Node without addresses has %q", got)
	}
}

func TestAnnotate(t *testing.T) {
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge", Annotations: map[string]string{"old": "1", "kept": "2"}}})
	if err := Annotate(t.Context(), api.CoreV1().Nodes(), "edge", map[string]string{"old": "", "new": "3"}); err != nil {
		t.Fatal(err)
	}
	node, err := api.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"kept": "2", "new": "3"}; !maps.Equal(node.Annotations, want) {
		t.Errorf("the annotations are %v, want %v", node.Annotations, want)
	}
	for _, action := range api.Actions() {
		if action.GetVerb() == "patch" && action.GetSubresource() != "status" {
			t.Error("the patch does not go to the status")
		}
	}
}
