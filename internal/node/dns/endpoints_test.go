package dns

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

func summary(wanted map[string]*discoveryv1.EndpointSlice) map[string]string {
	sums := map[string]string{}
	for name, slice := range wanted {
		for _, endpoint := range slice.Endpoints {
			sums[name] += fmt.Sprint(*endpoint.NodeName, "=", endpoint.Addresses[0], " ")
		}
	}
	return sums
}

func TestWantedSlices(t *testing.T) {
	got := summary(wantedSlices([]*corev1.Node{
		node("b", "192.0.2.2", "2001:db8::2"),
		node("a", "192.0.2.1", "192.0.2.11"),
		node("new"),
	}))
	want := map[string]string{
		"kube-dns-ipv4-0": "a=192.0.2.1 b=192.0.2.2 ",
		"kube-dns-ipv6-0": "b=2001:db8::2 ",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var many []*corev1.Node
	for i := range maxEndpoints + 1 {
		many = append(many, node(fmt.Sprintf("n%04d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
	}
	if names := slices.Sorted(maps.Keys(wantedSlices(many))); !slices.Equal(names, []string{"kube-dns-ipv4-0", "kube-dns-ipv4-1"}) {
		t.Errorf("%d nodes are in %v", len(many), names)
	}
}

// A report that a node is well makes no difference.
func TestSameAddresses(t *testing.T) {
	before := node("a", "192.0.2.1", "2001:db8::1")
	well := before.DeepCopy()
	well.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	if !sameAddresses(before, well) {
		t.Error("a report counts as a change of addresses")
	}
	if sameAddresses(before, node("a", "192.0.2.1", "2001:db8::2")) {
		t.Error("another address counts as the same")
	}
}

// TestEndpoints follows nodes that come and go, and repairs a slice that somebody has changed.
func TestEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset(node("a", "192.0.2.1"))
		endpoints := NewEndpoints(EndpointsConfig{Informers: objectcache.Own(api)})
		endpoints.api = api
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- endpoints.Run(ctx, func() { close(ready) }) }()
		<-ready
		slicesAre := func(want map[string]string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			list, err := api.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			found := map[string]*discoveryv1.EndpointSlice{}
			for _, slice := range list.Items {
				found[slice.Name] = &slice
			}
			if got := summary(found); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		slicesAre(map[string]string{"kube-dns-ipv4-0": "a=192.0.2.1 "})
		_, err := api.CoreV1().Nodes().Create(ctx, node("b", "2001:db8::2"), metav1.CreateOptions{})
		must(t, err)
		slicesAre(map[string]string{"kube-dns-ipv4-0": "a=192.0.2.1 ", "kube-dns-ipv6-0": "b=2001:db8::2 "})
		_, err = api.CoreV1().Nodes().Update(ctx, node("a", "192.0.2.7"), metav1.UpdateOptions{})
		must(t, err)
		must(t, api.CoreV1().Nodes().Delete(ctx, "b", metav1.DeleteOptions{}))
		slicesAre(map[string]string{"kube-dns-ipv4-0": "a=192.0.2.7 "})
		must(t, api.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, "kube-dns-ipv4-0", metav1.DeleteOptions{}))
		slicesAre(map[string]string{"kube-dns-ipv4-0": "a=192.0.2.7 "})
		cancel()
		must(t, <-done)
	})
}
