package proxy

import (
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// heard counts updates, and keeps the last slice.
type heard struct {
	watch.EndpointSliceHandler
	updates int
	last    *discoveryv1.EndpointSlice
}

func (h *heard) OnEndpointSliceAdd(slice *discoveryv1.EndpointSlice) { h.last = slice }

func (h *heard) OnEndpointSliceUpdate(_, slice *discoveryv1.EndpointSlice) {
	h.updates++
	h.last = slice
}

// TestRenamedHost has two Nodes with one address: this one, and the one that the host was before. Only the endpoint of this
// one is the proxier's.
func TestRenamedHost(t *testing.T) {
	slice := func(manager string, nodes ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelManagedBy: manager}}}
		for _, node := range nodes {
			name, address, _ := strings.Cut(node, "@")
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &name, Addresses: []string{address}})
		}
		return s
	}
	for name, test := range map[string]struct {
		before, after *discoveryv1.EndpointSlice
		want          string
	}{
		"at the start":      {nil, slice("local", "now@1", "before@1", "other@2"), "now other"},
		"after its name":    {slice("local", "before@1"), slice("local", "now@1", "before@1"), "now"},
		"alone":             {nil, slice("local", "before@1", "other@2"), "before other"},
		"of others' slices": {nil, slice("other", "now@1", "before@1"), "now before"},
	} {
		h := &heard{}
		l := localSlices{h, "local", "now"}
		if test.before == nil {
			l.OnEndpointSliceAdd(test.after)
		} else {
			l.OnEndpointSliceUpdate(test.before, test.after)
		}
		var got []string
		for _, endpoint := range h.last.Endpoints {
			got = append(got, *endpoint.NodeName)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: the proxier got the endpoints of %v, want %s", name, got, test.want)
		}
	}
}

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
