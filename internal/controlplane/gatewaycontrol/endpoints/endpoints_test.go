package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// world is a cluster with the nodes a (192.0.2.1, pods 10.42.0.0/24 and fd42::/64) and b (192.0.2.2,
// pods 10.42.1.0/24), a server without a node (192.0.2.9), the pool lan (192.0.2.200), and ranges outside
// that are allowed.
type world struct {
	Finder
	pods   map[string]*corev1.Pod
	slices map[string][]*discoveryv1.EndpointSlice
}

func newWorld() *world {
	w := &world{pods: map[string]*corev1.Pod{}, slices: map[string][]*discoveryv1.EndpointSlice{}}
	nodes := map[string]*corev1.Node{}
	for name, ranges := range map[string][]string{"a": {"10.42.0.0/24", "fd42::/64"}, "b": {"10.42.1.0/24"}} {
		address := map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"}[name]
		nodes[name] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeExternalIP, Address: "198.51.100" + strings.TrimPrefix(address, "192.0.2")},
			}},
		}
	}
	w.Rules = Rules{
		OwnPods: true, VIP: netip.MustParseAddr("192.0.2.100"), PodRanges: prefixes("10.42.0.0/16", "fd42::/56"), Services: prefixes("10.43.0.0/16", "fd43::/112"),
		Allowed: prefixes("192.0.2.0/24", "198.51.100.0/24", "10.0.0.0/8", "100.100.100.0/24", "169.254.0.0/16", "168.63.0.0/16", "192.0.0.0/24", "127.0.0.0/8", "fd00::/16", "fd42::/56", "fe80::/10"),
		Owner: func(address netip.Addr) (string, bool) {
			owner := map[string]string{"192.0.2.1": "a", "192.0.2.2": "b"}[address.String()]
			return owner, owner != ""
		},
	}
	w.Pool = func(address netip.Addr) string {
		return map[string]string{"192.0.2.200": "lan"}[address.String()]
	}
	w.Slices = func(namespace, service string) []*discoveryv1.EndpointSlice { return w.slices[namespace+"/"+service] }
	w.Pod = func(namespace, name string) *corev1.Pod { return w.pods[namespace+"/"+name] }
	w.Node = func(name string) *corev1.Node { return nodes[name] }
	w.Nodes = func() []*corev1.Node { return []*corev1.Node{nodes["a"], nodes["b"]} }
	w.slices["default/kubernetes"] = []*discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}}}}
	for _, p := range []struct {
		name, node string
		host       bool
		addresses  []string
	}{
		{"tenant/web", "a", false, []string{"10.42.0.7", "fd42::7"}},
		{"tenant/done", "a", false, []string{"10.42.0.8"}},
		{"tenant/host", "a", true, []string{"192.0.2.1"}},
		// What a captured node says of its pods.
		{"tenant/liar", "b", false, []string{"10.42.0.9", "192.0.2.1", "10.42.1.9", "169.254.169.254"}},
		{"tenant/host-liar", "b", true, []string{"192.0.2.1", "192.0.2.77"}},
		{"tenant/new", "", false, nil},
		{"shop/web", "a", false, []string{"10.42.0.20"}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: p.node, HostNetwork: p.host}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		for _, address := range p.addresses {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
		}
		w.pods[p.name] = pod
	}
	w.pods["tenant/done"].Status.Phase = corev1.PodSucceeded
	return w
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// at returns what the Finder says about an endpoint of a Service of the namespace tenant. pod is
// [NAMESPACE/]NAME, or empty.
func (w *world) at(address, pod string, managed bool) Found {
	endpoint := discoveryv1.Endpoint{Addresses: []string{address}}
	if pod != "" {
		namespace, name, has := strings.Cut(pod, "/")
		if !has {
			namespace, name = "", pod
		}
		endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web-x", Labels: map[string]string{}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}}, Endpoints: []discoveryv1.Endpoint{endpoint},
	}
	if managed {
		slice.Labels[discoveryv1.LabelManagedBy] = sliceController
	}
	w.slices["tenant/web"] = []*discoveryv1.EndpointSlice{slice}
	w.found, w.Finder.Pods = nil, nil
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"}}
	return w.Of(service, &corev1.ServicePort{Name: "http", Port: 80})
}

// TestAddresses has endpoints that a user of the namespace tenant writes. The gateway connects only to
// the pods of the namespace, and to what an administrator has allowed.
func TestAddresses(t *testing.T) {
	w := newWorld()
	for _, test := range []struct {
		address, pod string
		// refused is a part of what is told. It is empty if the gateway connects.
		refused string
	}{
		{"10.42.0.7", "web", ""},
		{"10.42.0.7", "tenant/web", ""},
		{"fd42::7", "web", ""},
		{"::ffff:10.42.0.7", "web", ""},
		{"192.0.2.1", "host", ""},
		{"192.0.2.50", "", ""},
		{"10.1.2.3", "", ""},

		{"10.42.0.20", "", "names no pod of namespace tenant, and the address is in the range of pods. No setting allows this"},
		{"10.42.0.20", "shop/web", "no pod of namespace tenant"},
		{"10.42.0.20", "web", "pod tenant/web has another address"},
		{"10.42.0.20", "gone", "there is no pod tenant/gone"},
		{"10.42.0.8", "done", "has ended"},
		{"10.42.0.7", "new", "has another address"},
		{"10.42.0.9", "liar", "not in the range of pods of node b"},
		{"192.0.2.1", "liar", "not in the range of pods of node b, which runs pod tenant/liar, and the address is a node's"},
		{"10.42.1.9", "liar", ""},
		{"169.254.169.254", "liar", "credentials"},
		{"192.0.2.1", "host-liar", "node b of pod tenant/host-liar is not registered with it"},

		{"192.0.2.2", "", "the address is a node's"},
		{"198.51.100.2", "", "the address is a node's"},
		{"192.0.2.9", "", "the address is a node's"},
		{"192.0.2.100", "", "the address is a node's"},
		{"192.0.2.200", "", "the address is one of LoadBalancerPool lan. No setting allows this"},
		{"::ffff:192.0.2.200", "web", "the address is one of LoadBalancerPool lan. No setting allows this"},
		{"10.43.0.1", "", "in the range of Services. No setting"},
		{"fd43::1", "web", "in the range of Services"},
		{"fd42::1:7", "", "in the range of pods"},
		{"127.0.0.1", "", "one of loopback"},
		{"::ffff:127.0.0.1", "", "one of loopback"},
		{"169.254.169.254", "", "credentials"},
		{"100.100.100.200", "", "credentials"},
		{"168.63.129.16", "", "credentials"},
		{"192.0.0.192", "", "credentials"},
		{"fd00:ec2::254", "", "credentials"},
		{"fd00:ec2::23", "", "credentials"},
		{"fd00:42::42", "", "credentials"},
		{"fe80::1", "", "credentials"},
		{"224.0.0.1", "", "credentials"},
		{"203.0.113.7", "", "the endpoint names no pod of namespace tenant. If it is a pod of namespace tenant, give the Service a selector, so that Kubernetes lists its pods. " +
			"If it is outside the cluster, an administrator can allow it by gateway-backend-ranges: [203.0.113.7/32]"},
		{"2001:db8::7", "", "gateway-backend-ranges: [2001:db8::7/128]"},
	} {
		found := w.at(test.address, test.pod, false)
		if refused := found.Refused != ""; refused != (test.refused != "") || refused == (len(found.Endpoints) == 1) || !strings.Contains(found.Refused, test.refused) {
			t.Errorf("%s of pod %q: endpoints %v, refused: %s", test.address, test.pod, found.Endpoints, found.Refused)
		}
	}
}

// TestOutdated has endpoints of Kubernetes itself that are older than the pods. They do not count, and
// nobody is told.
func TestOutdated(t *testing.T) {
	w := newWorld()
	for pod, silent := range map[string]bool{"gone": true, "done": true, "new": true, "liar": false} {
		address := map[bool]string{true: "10.42.0.8", false: "10.42.0.9"}[silent]
		found := w.at(address, pod, true)
		if len(found.Endpoints) != 0 || (found.Refused == "") != silent {
			t.Errorf("of pod %s: %+v", pod, found)
		}
	}
	if len(w.Finder.Pods) != 1 {
		t.Errorf("the pods to look at again are %v", w.Finder.Pods)
	}
}

// TestOwnNetwork has a network of the user's, whose pods may have any address that is no node's and of no
// pool.
func TestOwnNetwork(t *testing.T) {
	w := newWorld()
	w.OwnPods = false
	w.pods["tenant/liar"].Status.PodIPs = append(w.pods["tenant/liar"].Status.PodIPs, corev1.PodIP{IP: "172.16.0.4"}, corev1.PodIP{IP: "10.43.0.1"}, corev1.PodIP{IP: "192.0.2.200"})
	for address, want := range map[string]bool{"172.16.0.4": true, "10.42.0.9": true, "192.0.2.1": false, "192.0.2.200": false, "10.43.0.1": false, "172.16.0.5": false} {
		if found := w.at(address, "liar", false); (len(found.Endpoints) == 1) != want {
			t.Errorf("%s: %+v", address, found)
		}
	}
}

// TestOf has endpoints in all states, of two address families.
func TestOf(t *testing.T) {
	w := newWorld()
	state := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	pod := &corev1.ObjectReference{Kind: "Pod", Name: "web"}
	slice := func(conditions ...discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
		made := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "x"},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}, {Name: ptr.To("dns"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](53)}}}
		for i, c := range conditions {
			made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{[]string{"10.42.0.7", "fd42::7"}[i]}, Conditions: c, TargetRef: pod})
		}
		return made
	}
	port := &corev1.ServicePort{Name: "http", Port: 80}
	for name, test := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		port  *corev1.ServicePort
		want  string
	}{
		"ready":                    {slice(state(true, true, false), discoveryv1.EndpointConditions{}), port, "[10.42.0.7:8080 [fd42::7]:8080]"},
		"one is not":               {slice(state(true, true, false), state(false, false, false)), port, "[10.42.0.7:8080]"},
		"one is terminating":       {slice(state(true, true, false), state(false, true, true)), port, "[10.42.0.7:8080]"},
		"all are terminating":      {slice(state(false, false, true), state(false, true, true)), port, "[[fd42::7]:8080]"},
		"another protocol":         {slice(state(true, true, false)), &corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, "[10.42.0.7:53]"},
		"a port that is not there": {slice(state(true, true, false)), &corev1.ServicePort{Name: "dns", Port: 53}, "[]"},
	} {
		w.slices["tenant/web"], w.found = []*discoveryv1.EndpointSlice{test.slice}, nil
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"}}
		if got := w.Of(service, test.port); fmt.Sprint(got.Endpoints) != test.want || got.Refused != "" {
			t.Errorf("%s: %+v, want %s", name, got, test.want)
		}
		if Any(test.port, w.slices["tenant/web"]) != (test.want != "[]") {
			t.Errorf("%s: Any says something else", name)
		}
	}
	if len(w.Of(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "other"}}, port).Endpoints) != 0 {
		t.Error("a Service without EndpointSlices has endpoints")
	}
}

// BenchmarkOf finds 5,000 endpoints.
func BenchmarkOf(b *testing.B) {
	w := newWorld()
	port := &corev1.ServicePort{Name: "http", Port: 80}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant"}, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}}}
	for i := range 5000 {
		name, address := fmt.Sprint("pod-", i), netip.AddrFrom4([4]byte{10, 42, 0, byte(i)}).String()
		w.pods["tenant/"+name] = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: address}}}}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name}})
	}
	w.slices["tenant/web"] = slices.Repeat([]*discoveryv1.EndpointSlice{slice}, 1)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"}}
	for b.Loop() {
		w.found, w.Finder.Pods = nil, nil
		w.Of(service, port)
	}
}
