package loadbalancercontrol

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// aNode is node N: it has the addresses 192.0.2.N and fd00::N, and all ports are free.
func aNode(number int, change ...func(*node)) *node {
	n := &node{
		name: fmt.Sprint("node-", number), available: true, answers: true,
		internal: []netip.Addr{netip.MustParseAddr(fmt.Sprint("192.0.2.", number)), netip.MustParseAddr(fmt.Sprint("fd00::", number))},
		ports:    servicelb.Ports{"80/tcp": "", "443/tcp": "", "53/udp": ""},
	}
	for _, do := range change {
		do(n)
	}
	return n
}

// aService is a Service of IPv4 with port 80, that is age seconds old.
func aService(name string, age int, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}},
		},
	}
	for _, do := range change {
		do(s)
	}
	return s
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
func dual(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
}
func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}
func annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) }
}
func labelled(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataLabel(&s.ObjectMeta, key, value) }
}
func port(number int32, protocol corev1.Protocol) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[0].Protocol = number, protocol }
}
func with(key, value string) func(*node) {
	return func(n *node) {
		if n.labels == nil {
			n.labels = labels.Set{}
		}
		n.labels[key] = value
	}
}

func aPool(t *testing.T, name string, automatic bool, addresses ...string) *pool {
	t.Helper()
	p := &pool{name: name, automatic: automatic, nodes: labels.Everything(), services: labels.Everything(), namespaces: labels.Everything()}
	for _, text := range addresses {
		r, err := parseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		p.ranges = append(p.ranges, r)
	}
	return p
}

// want is an outcome as text: the addresses, and the reason with words of the message.
type want struct {
	addresses string
	reason    string
	words     []string
}

func TestPlan(t *testing.T) {
	silent := func(n *node) { n.answers = false }
	unavailable := func(n *node) { n.available = false }
	unconfirmed := func(n *node) { n.ports = nil }
	taken := func(n *node) { n.ports["80/tcp"] = "nginx (process 7)" }
	external := func(address string) func(*node) {
		return func(n *node) { n.external = []netip.Addr{netip.MustParseAddr(address)} }
	}
	for name, test := range map[string]struct {
		nodes    []*node
		services []*corev1.Service
		pools    []*pool
		held     map[netip.Addr]string
		want     map[string]want
	}{
		"every node": {
			[]*node{aNode(2), aNode(1)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {addresses: "192.0.2.1 192.0.2.2"}},
		},
		"both families, in the order of the Service": {
			[]*node{aNode(1), aNode(2)}, []*corev1.Service{aService("web", 1, dual)}, nil, nil,
			map[string]want{"web": {addresses: "fd00::1 fd00::2 192.0.2.1 192.0.2.2"}},
		},
		"external addresses of any node are the only ones": {
			[]*node{aNode(1, external("203.0.113.1")), aNode(2)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {addresses: "203.0.113.1"}},
		},
		"nodes that are gone, not ready, or have not looked": {
			[]*node{aNode(1, silent), aNode(2, unavailable), aNode(3, unconfirmed), aNode(4)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {addresses: "192.0.2.4"}},
		},
		"no node yet": {
			[]*node{aNode(1, unconfirmed)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {}},
		},
		"no node at all": {
			[]*node{aNode(1, unavailable)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {"", reasonUnavailable, []string{"no available nodes"}}},
		},
		"a process has the port": {
			[]*node{aNode(1, taken), aNode(2)}, []*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {"192.0.2.2", reasonInUse, []string{"80/tcp", "nginx (process 7)", "node node-1"}}},
		},
		"the older Service keeps the port": {
			[]*node{aNode(1)}, []*corev1.Service{aService("young", 1), aService("old", 2)}, nil, nil,
			map[string]want{"old": {addresses: "192.0.2.1"}, "young": {"", reasonConflict, []string{"default/old", "80/tcp"}}},
		},
		"of the same age the UID decides": {
			[]*node{aNode(1)}, []*corev1.Service{aService("b", 1), aService("a", 1)}, nil, nil,
			map[string]want{"a": {addresses: "192.0.2.1"}, "b": {"", reasonConflict, []string{"default/a"}}},
		},
		"another protocol, another family, another node": {
			[]*node{aNode(1)},
			[]*corev1.Service{
				aService("a", 4), aService("b", 3, port(53, corev1.ProtocolUDP)),
				aService("c", 2, func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }),
			}, nil, nil,
			map[string]want{"a": {addresses: "192.0.2.1"}, "b": {addresses: "192.0.2.1"}, "c": {addresses: "fd00::1"}},
		},
		"who gets no address of a node has none of its ports": {
			[]*node{aNode(1, func(n *node) { n.ports["443/tcp"] = "sshd" })},
			[]*corev1.Service{
				aService("old", 2, func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 443}) }),
				aService("young", 1),
			}, nil, nil,
			map[string]want{"old": {"", reasonInUse, []string{"443/tcp", "sshd"}}, "young": {addresses: "192.0.2.1"}},
		},
		"an older Service has one port, and a process another": {
			[]*node{aNode(1, func(n *node) { n.ports["443/tcp"] = "sshd" })},
			[]*corev1.Service{
				aService("old", 2), aService("young", 1, func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 443}) }),
			}, nil, nil,
			map[string]want{"old": {addresses: "192.0.2.1"}, "young": {"", reasonConflict, []string{"80/tcp", "default/old", "443/tcp", "sshd"}}},
		},
		"a port in the range of NodePorts": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 1, port(30000, corev1.ProtocolTCP))}, nil, nil,
			map[string]want{"web": {"", reasonReserved, []string{"30000-32767"}}},
		},
		"nodes with endpoints": {
			[]*node{aNode(1), aNode(2)}, []*corev1.Service{aService("on-2", 1, local)}, nil, nil,
			map[string]want{"on-2": {addresses: "192.0.2.2"}},
		},
		"no endpoints, and the port stays the Service's": {
			[]*node{aNode(1)}, []*corev1.Service{aService("nowhere", 2, local), aService("young", 1)}, nil, nil,
			map[string]want{"nowhere": {"", reasonUnavailable, []string{"Local"}}, "young": {"", reasonConflict, []string{"default/nowhere"}}},
		},
		"k3s's label enables nodes": {
			[]*node{aNode(1, with(servicelb.EnableLabel, "true")), aNode(2), aNode(3, with(servicelb.EnableLabel, "false"))},
			[]*corev1.Service{aService("web", 1)}, nil, nil,
			map[string]want{"web": {addresses: "192.0.2.1"}},
		},
		"k3s's label chooses a pool of nodes": {
			[]*node{
				aNode(1, with(servicelb.EnableLabel, "true"), with(servicelb.PoolLabel, "a")),
				aNode(2, with(servicelb.EnableLabel, "true"), with(servicelb.PoolLabel, "b")),
			},
			[]*corev1.Service{aService("of-b", 2, labelled(servicelb.PoolLabel, "b")), aService("of-any", 1)}, nil, nil,
			map[string]want{"of-b": {addresses: "192.0.2.2"}, "of-any": {"192.0.2.1", reasonConflict, []string{"default/of-b", "node-2"}}},
		},
		"without enabled nodes the pool does not count": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 1, labelled(servicelb.PoolLabel, "b"))}, nil, nil,
			map[string]want{"web": {addresses: "192.0.2.1"}},
		},

		"pools give to those that ask": {
			[]*node{aNode(1)},
			[]*corev1.Service{aService("class", 3, class(servicelb.PoolClass)), aService("name", 2, annotated(servicelb.PoolAnnotation, "b")), aService("neither", 1)},
			[]*pool{aPool(t, "a", false, "198.51.100.0/24"), aPool(t, "b", false, "203.0.113.5-203.0.113.6")}, nil,
			map[string]want{"class": {addresses: "198.51.100.1"}, "name": {addresses: "203.0.113.5"}, "neither": {addresses: "192.0.2.1"}},
		},
		"a pool with selectors gives without being asked": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 1)}, []*pool{aPool(t, "a", true, "198.51.100.7")}, nil,
			map[string]want{"web": {addresses: "198.51.100.7"}},
		},
		"such a pool comes before pools that want to be asked, and the class of nodes before it": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 2), aService("nodes", 1, class(servicelb.Class))},
			[]*pool{aPool(t, "a", false, "198.51.100.7"), aPool(t, "b", true, "203.0.113.7")}, nil,
			map[string]want{"web": {addresses: "203.0.113.7"}, "nodes": {addresses: "192.0.2.1"}},
		},
		"Services keep their addresses": {
			[]*node{aNode(1)},
			[]*corev1.Service{aService("new", 9, class(servicelb.PoolClass)), aService("has", 1, class(servicelb.PoolClass))},
			[]*pool{aPool(t, "a", false, "198.51.100.1-198.51.100.9")},
			map[netip.Addr]string{netip.MustParseAddr("198.51.100.1"): "default/has", netip.MustParseAddr("198.51.100.2"): "default/gone"},
			map[string]want{"has": {addresses: "198.51.100.1"}, "new": {addresses: "198.51.100.2"}},
		},
		"an address is asked for": {
			[]*node{aNode(1)},
			[]*corev1.Service{
				aService("asks", 4, annotated(servicelb.AddressAnnotation, "198.51.100.3")),
				aService("field", 3, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "198.51.100.4" }),
				aService("late", 2, annotated(servicelb.AddressAnnotation, "198.51.100.3")),
				aService("outside", 1, annotated(servicelb.AddressAnnotation, "203.0.113.1")),
				aService("text", 1, annotated(servicelb.AddressAnnotation, "any")),
			},
			[]*pool{aPool(t, "a", false, "198.51.100.1-198.51.100.9")}, nil,
			map[string]want{
				"asks": {addresses: "198.51.100.3"}, "field": {addresses: "198.51.100.4"},
				"late":    {"", reasonPool, []string{"198.51.100.3", "default/asks"}},
				"outside": {"", reasonPool, []string{"203.0.113.1"}},
				"text":    {"", reasonPool, []string{`"any"`}},
			},
		},
		"the old field alone asks for nothing": {
			[]*node{aNode(1)}, []*corev1.Service{aService("field", 1, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "198.51.100.4" })}, nil, nil,
			map[string]want{"field": {addresses: "192.0.2.1"}},
		},
		"no pool, an unknown pool, an empty pool": {
			[]*node{aNode(1)},
			[]*corev1.Service{
				aService("unknown", 3, annotated(servicelb.PoolAnnotation, "x")), aService("first", 2, class(servicelb.PoolClass)), aService("second", 1, class(servicelb.PoolClass)),
			},
			[]*pool{aPool(t, "a", false, "198.51.100.1")}, nil,
			map[string]want{
				"unknown": {"", reasonPool, []string{"no LoadBalancerPool x"}}, "first": {addresses: "198.51.100.1"}, "second": {"", reasonPool, []string{"free IPv4 address"}},
			},
		},
		"addresses of nodes and of networks are not given": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 1, class(servicelb.PoolClass))}, []*pool{aPool(t, "a", false, "192.0.2.0/30")}, nil,
			map[string]want{"web": {addresses: "192.0.2.2"}},
		},
		"two families of one pool": {
			[]*node{aNode(1)}, []*corev1.Service{aService("web", 1, dual, class(servicelb.PoolClass))}, []*pool{aPool(t, "a", false, "198.51.100.1", "fd01::/64")}, nil,
			map[string]want{"web": {addresses: "fd01::1 198.51.100.1"}},
		},
		"nobody may announce": {
			[]*node{aNode(1, func(n *node) { n.available = false })},
			[]*corev1.Service{aService("web", 2, class(servicelb.PoolClass)), aService("on-1", 1, local, class(servicelb.PoolClass))},
			[]*pool{aPool(t, "a", false, "198.51.100.1-198.51.100.2")}, nil,
			map[string]want{"web": {"", reasonUnavailable, []string{"198.51.100.1"}}, "on-1": {"", reasonUnavailable, []string{"198.51.100.2"}}},
		},
		"an address of a pool stays without a ready endpoint": {
			[]*node{aNode(1)}, []*corev1.Service{aService("on-2", 1, local, class(servicelb.PoolClass))}, []*pool{aPool(t, "a", false, "198.51.100.1")}, nil,
			map[string]want{"on-2": {"198.51.100.1", reasonUnavailable, []string{"198.51.100.1", "ready endpoint"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{
				nodes: test.nodes, services: test.services, pools: test.pools, held: test.held, nodePorts: *net.ParsePortRangeOrDie("30000-32767"),
				local: func(service *corev1.Service) localPorts {
					return localPorts{strings.Replace(service.Name, "on-", "node-", 1): nil}
				},
				namespace: func(string) labels.Set { return nil },
			}
			outcomes, _ := w.plan()
			for name, want := range test.want {
				got := outcomes[types.UID(name)]
				var addresses []string
				for _, address := range got.addresses {
					addresses = append(addresses, address.String())
				}
				if text := strings.Join(addresses, " "); text != want.addresses || got.reason != want.reason {
					t.Errorf("%s has %q, %s: %s", name, text, got.reason, got.message)
				}
				for _, word := range want.words {
					if !strings.Contains(got.message, word) {
						t.Errorf("%s: %q lacks %q", name, got.message, word)
					}
				}
			}
		})
	}
}

// TestFront has the Service by which clients reach Gateways and Ingresses. A port that a node does
// not serve costs only this port there.
func TestFront(t *testing.T) {
	front := func(s *corev1.Service) {
		s.Labels = map[string]string{"gateway.kedge.dev/front": s.Name}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 443, Protocol: corev1.ProtocolTCP, NodePort: 30443})
	}
	port443 := func(owner string) func(*node) {
		return func(n *node) {
			if n.ports["443/tcp"] = owner; owner == "?" {
				delete(n.ports, "443/tcp")
			}
		}
	}
	external := func(n *node) { n.external = []netip.Addr{netip.MustParseAddr("203.0.113.1")} }
	both := map[string]bool{"80/tcp": true, "443/tcp": true}
	for name, test := range map[string]struct {
		nodes    []*node
		services []*corev1.Service
		local    localPorts
		// want has the addresses, each with the ports that it does not serve.
		want, reason string
	}{
		"all free":                      {[]*node{aNode(1), aNode(2)}, nil, localPorts{"node-1": both, "node-2": both}, "192.0.2.1[] 192.0.2.2[]", ""},
		"a process has a port":          {[]*node{aNode(1, port443("sshd")), aNode(2)}, nil, localPorts{"node-1": both, "node-2": both}, "192.0.2.1[443/tcp] 192.0.2.2[]", reasonInUse},
		"a pod has a port":              {[]*node{aNode(1), aNode(2)}, nil, localPorts{"node-1": {"80/tcp": true}, "node-2": both}, "192.0.2.1[443/tcp] 192.0.2.2[]", ""},
		"not looked at yet":             {[]*node{aNode(1, port443("?")), aNode(2)}, nil, localPorts{"node-1": both, "node-2": both}, "192.0.2.1[443/tcp] 192.0.2.2[]", ""},
		"another Service":               {[]*node{aNode(1), aNode(2)}, []*corev1.Service{aService("old", 9)}, localPorts{"node-1": both, "node-2": both, "old": nil}, "192.0.2.1[80/tcp] 192.0.2.2[80/tcp]", reasonConflict},
		"a NodePort":                    {[]*node{aNode(1)}, nil, localPorts{"node-1": both}, "192.0.2.1[31000/tcp]", reasonReserved},
		"nothing listens":               {[]*node{aNode(1), aNode(2)}, nil, localPorts{"node-2": both}, "192.0.2.2[]", ""},
		"one external address":          {[]*node{aNode(1, external, port443("sshd")), aNode(2, external)}, nil, localPorts{"node-1": both, "node-2": both}, "203.0.113.1[443/tcp]", reasonInUse},
		"everything is somebody else's": {[]*node{aNode(1, port443("sshd"))}, []*corev1.Service{aService("old", 9)}, localPorts{"node-1": both}, "", reasonConflict},
	} {
		t.Run(name, func(t *testing.T) {
			service := aService("front", 1, front, local)
			if test.reason == reasonReserved {
				service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Port: 31000})
			}
			w := &world{
				nodes: test.nodes, services: append(test.services, service), nodePorts: *net.ParsePortRangeOrDie("30000-32767"),
				local: func(*corev1.Service) localPorts { return test.local },
			}
			outcomes, _ := w.plan()
			got := outcomes["front"]
			var texts []string
			for _, address := range got.addresses {
				texts = append(texts, fmt.Sprintf("%s%v", address, got.unserved[address]))
			}
			if text := strings.Join(texts, " "); text != test.want || got.reason != test.reason {
				t.Errorf("it has %q, %s: %s", text, got.reason, got.message)
			}
			for _, address := range got.addresses {
				one := corev1.LoadBalancerIngress{Ports: portsOf(service, got.unserved[address])}
				for i := range service.Spec.Ports {
					port := &service.Spec.Ports[i]
					if servicelb.Serves(&one, port) == slices.Contains(got.unserved[address], servicelb.Port(port)) {
						t.Errorf("the status says of port %d at %s: %+v", port.Port, address, one.Ports)
					}
				}
				if len(one.Ports) > 0 && len(one.Ports) != len(service.Spec.Ports) {
					t.Errorf("the status has %d of %d ports", len(one.Ports), len(service.Spec.Ports))
				}
			}
		})
	}
}

// TestAnnouncers lists which nodes may announce the address of a pool.
func TestAnnouncers(t *testing.T) {
	p := aPool(t, "a", false, "198.51.100.1")
	p.nodes = labels.SelectorFromSet(labels.Set{"edge": "yes"})
	w := &world{
		nodes: []*node{
			aNode(1), aNode(2, with("edge", "yes"), func(n *node) { n.answers = false }),
			aNode(3, with("edge", "yes"), func(n *node) { n.available = false }), aNode(4, with("edge", "yes")),
		},
		services: []*corev1.Service{aService("web", 1, class(servicelb.PoolClass))},
		pools:    []*pool{p}, nodePorts: *net.ParsePortRangeOrDie("30000-32767"),
	}
	_, leases := w.plan()
	got := leases[netip.MustParseAddr("198.51.100.1")]
	if got == nil || got.services != "default/web" || !slices.Equal(got.nodes, []string{"node-2", "node-4"}) {
		t.Errorf("got %+v", got)
	}
}

func TestPoolAllows(t *testing.T) {
	p := aPool(t, "a", true, "198.51.100.1")
	p.services = labels.SelectorFromSet(labels.Set{"app": "web"})
	p.namespaces = labels.SelectorFromSet(labels.Set{"team": "a"})
	team := func(name string) func(string) labels.Set {
		return func(string) labels.Set { return labels.Set{"team": name} }
	}
	web := aService("web", 1, labelled("app", "web"))
	if !p.allows(web, team("a")) || p.allows(web, team("b")) || p.allows(aService("other", 1), team("a")) {
		t.Error("a Service gets an address that is not for it, or the other way round")
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.16/28":           "192.0.2.16 192.0.2.31",
		"192.0.2.20/28":           "192.0.2.16 192.0.2.31",
		"192.0.2.1-192.0.2.3":     "192.0.2.1 192.0.2.3",
		"192.0.2.1 - 192.0.2.3":   "192.0.2.1 192.0.2.3",
		"192.0.2.9":               "192.0.2.9 192.0.2.9",
		"fd00::/126":              "fd00:: fd00::3",
		"fd00::1-fd00::5":         "fd00::1 fd00::5",
		"192.0.2.3-192.0.2.1":     "",
		"192.0.2.3-fd00::1":       "",
		"192.0.2.3-":              "",
		"fe80::1%eth0":            "",
		"nowhere":                 "",
		"::ffff:192.0.2.1":        "",
		"::ffff:192.0.2.0/120":    "",
		"192.0.2.1-192.0.2.2-192": "",
	} {
		r, err := parseRange(text)
		got := ""
		if err == nil {
			got = r.first.String() + " " + r.last.String()
		}
		if got != want {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
}

func TestIsSameNode(t *testing.T) {
	ready := func(status corev1.ConditionStatus, heartbeat int64) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Unix(heartbeat, 0)},
		}}}
	}
	if !isSameNode(ready(corev1.ConditionTrue, 1), ready(corev1.ConditionTrue, 2)) {
		t.Error("a heartbeat counts as a change")
	}
	if isSameNode(ready(corev1.ConditionTrue, 1), ready(corev1.ConditionUnknown, 1)) {
		t.Error("a node that is lost counts as the same")
	}
	reported := ready(corev1.ConditionTrue, 1)
	reported.Annotations = map[string]string{servicelb.PortsAnnotation: `{"80/tcp": ""}`}
	if isSameNode(ready(corev1.ConditionTrue, 1), reported) {
		t.Error("a report counts as nothing")
	}
	if n := newNode(reported, true, nil); n.ports["80/tcp"] != "" || len(n.ports) != 1 || !n.available {
		t.Errorf("read %+v", n)
	}
	reported.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	reported.Annotations[servicelb.PortsAnnotation] = "["
	if n := newNode(reported, true, nil); n.ports != nil || n.available {
		t.Errorf("read %+v", n)
	}
}

func TestIsOurs(t *testing.T) {
	for name, test := range map[string]struct {
		service *corev1.Service
		want    bool
	}{
		"no class":    {aService("a", 1), true},
		"kedge's":     {aService("a", 1, class(servicelb.Class)), true},
		"of pools":    {aService("a", 1, class(servicelb.PoolClass)), true},
		"another's":   {aService("a", 1, class("example.com/x")), false},
		"a ClusterIP": {aService("a", 1, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }), false},
	} {
		if got := servicelb.IsOurs(test.service); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
