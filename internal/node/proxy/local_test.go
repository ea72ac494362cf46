package proxy

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// heard counts updates.
type heard struct {
	watch.EndpointSliceHandler
	updates int
}

func (h *heard) OnEndpointSliceUpdate(_, _ *discoveryv1.EndpointSlice) { h.updates++ }

func TestLocalSlices(t *testing.T) {
	slice := func(manager string, port int32, nodes ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelManagedBy: manager}},
			Ports:      []discoveryv1.EndpointPort{{Port: &port}},
		}
		for _, node := range nodes {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node, Addresses: []string{node}})
		}
		return s
	}
	for name, test := range map[string]struct {
		before, after *discoveryv1.EndpointSlice
		want          int
	}{
		"another node joins":     {slice("local", 53, "a"), slice("local", 53, "a", "b"), 0},
		"this node joins":        {slice("local", 53, "b"), slice("local", 53, "b", "a"), 1},
		"this node leaves":       {slice("local", 53, "a", "b"), slice("local", 53, "b"), 1},
		"the port changes":       {slice("local", 53, "a"), slice("local", 54, "a"), 1},
		"slice of other manager": {slice("other", 53, "a"), slice("other", 53, "a", "b"), 1},
	} {
		h := &heard{}
		localSlices{h, "local", "a"}.OnEndpointSliceUpdate(test.before, test.after)
		if h.updates != test.want {
			t.Errorf("%s: the proxier heard of %d updates, want %d", name, h.updates, test.want)
		}
	}
}
