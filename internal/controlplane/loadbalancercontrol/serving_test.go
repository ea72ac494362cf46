package loadbalancercontrol

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

func TestServing(t *testing.T) {
	made := func(name string, pairs ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for i := 0; i < len(pairs); i += 2 {
			n.Labels[pairs[i]] = pairs[i+1]
		}
		return n
	}
	pool := func(name, addresses, node string, automatic bool) *unstructured.Unstructured {
		spec := map[string]any{
			"addresses":    []any{addresses},
			"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": node}},
		}
		if automatic {
			spec["serviceSelector"] = map[string]any{"matchLabels": map[string]any{"automatic": "yes"}}
		}
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "spec": spec}}
	}
	pools := []*unstructured.Unstructured{
		pool("a", "192.0.2.100-192.0.2.109", "a", true), pool("b", "192.0.2.110-192.0.2.119", "b", true), pool("six", "2001:db8::/120", "six", true),
		{Object: map[string]any{"metadata": map[string]any{"name": "broken"}, "spec": map[string]any{"addresses": "none"}}},
	}
	nodes := []*corev1.Node{
		made("plain"), made("in-a", "pool", "a"), made("in-b", "pool", "b"), made("in-six", "pool", "six"),
		made("out", "pool", "a", corev1.LabelNodeExcludeBalancers, ""),
	}
	enabled := []*corev1.Node{made("plain"), made("in-a", "pool", "a"), made("chosen", servicelb.EnableLabel, "true", servicelb.PoolLabel, "x")}
	has := func(addresses ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for _, address := range addresses {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address})
			}
		}
	}
	automatic := labelled("automatic", "yes")
	for _, test := range []struct {
		name    string
		nodes   []*corev1.Node
		pools   []*unstructured.Unstructured
		service *corev1.Service
		want    string
	}{
		{"addresses of nodes", nodes, pools, aService("web", 1), "in-a in-b in-six plain"},
		{"addresses of chosen nodes", enabled, pools, aService("web", 1), "chosen"},
		{"addresses of other chosen nodes", enabled, pools, aService("web", 1, labelled(servicelb.PoolLabel, "y")), ""},
		{"a pool by name", nodes, pools, aService("web", 1, automatic, annotated(servicelb.PoolAnnotation, "a")), "in-a"},
		{"a pool by name, where others are chosen", enabled, pools, aService("web", 1, automatic, annotated(servicelb.PoolAnnotation, "a")), "in-a"},
		{"a pool that it may not use", nodes, pools, aService("web", 1, annotated(servicelb.PoolAnnotation, "a")), ""},
		{"a pool that is not there", nodes, pools, aService("web", 1, annotated(servicelb.PoolAnnotation, "c")), ""},
		{"without any pool", nodes, []*unstructured.Unstructured{}, aService("web", 1, annotated(servicelb.PoolAnnotation, "a")), ""},
		{"where kedge gives no addresses of pools", nodes, nil, aService("web", 1, annotated(servicelb.PoolAnnotation, "a")), "in-a in-b in-six plain"},
		{"an address by name", nodes, pools, aService("web", 1, automatic, annotated(servicelb.AddressAnnotation, "192.0.2.112")), "in-b"},
		{"an address of no pool", nodes, pools, aService("web", 1, annotated(servicelb.AddressAnnotation, "192.0.2.1")), ""},
		{"any pool", nodes, pools, aService("web", 1, automatic), "in-a in-b"},
		{"any pool, with an address", nodes, pools, aService("web", 1, automatic, has("192.0.2.115")), "in-b"},
		{"any pool, with an address that it may not have", nodes, pools, aService("web", 1, automatic, has("192.0.2.1")), "in-a in-b"},
		{"both families", nodes, pools, aService("web", 1, automatic, dual, has("2001:db8::1", "192.0.2.100")), "in-a in-six"},
	} {
		set := NewServing(test.pools, test.nodes, func(string) labels.Set { return nil }).Of(test.service)
		if got := strings.Join(slices.Sorted(maps.Keys(set.nodes)), " "); got != test.want {
			t.Errorf("%s: the nodes are %q, want %q", test.name, got, test.want)
		}
		for _, node := range test.nodes {
			if set.Has(node.Name) != slices.Contains(strings.Fields(test.want), node.Name) {
				t.Errorf("%s: the set has node %s: %t", test.name, node.Name, set.Has(node.Name))
			}
		}
	}
	var none *NodeSet
	if none.Has("plain") {
		t.Error("no set has a node")
	}
}
