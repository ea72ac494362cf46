package front

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// TestPartition has listeners of several namespaces. The most specific listener of a host has only
// what its owner has there.
func TestPartition(t *testing.T) {
	var claims []hosts.Claim
	allows := map[string]string{"shop.example": "blog"}
	for i, text := range []string{"bank bank.example", "bank *.bank.example", "shop shop.example", "shop *.example", "blog "} {
		namespace, host, _ := strings.Cut(text, " ")
		claims = append(claims, hosts.Claim{
			Host: host, Namespace: namespace, Kind: "Ingress", Since: time.Unix(int64(i), 0),
			Object: &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "web", Annotations: map[string]string{gateways.AllowAnnotation: allows[host]},
			}},
		})
	}
	owners := hosts.Decide(claims, nil)
	listener := func(namespace, host string) Listener {
		return Listener{routing.Listener{Name: namespace, Protocol: routing.HTTP, Hostname: host, Routes: []string{"all"}}, namespace}
	}
	routes := map[string]*routing.Route{"all": {}, "blog": {Hostnames: []string{"blog.test"}}}
	for name, test := range map[string]struct {
		listeners []Listener
		// want has the names of the listeners for each host, as nodes find them.
		want map[string]string
	}{
		"one namespace": {
			[]Listener{listener("bank", "")},
			map[string]string{"bank.example": "bank", "a.bank.example": "bank", "shop.example": "kube-system/kedge-gateway/nobody", "else.test": "bank"},
		},
		"all hosts of several": {
			[]Listener{listener("bank", ""), listener("shop", ""), listener("blog", "")},
			map[string]string{"bank.example": "bank", "a.bank.example": "bank", "shop.example": "shop blog", "b.example": "shop", "else.test": "blog bank shop"},
		},
		"a guest with a wildcard, and the owner with all hosts": {
			[]Listener{listener("shop", ""), listener("blog", "*.example")},
			map[string]string{"shop.example": "shop blog", "bank.example": "kube-system/kedge-gateway/nobody"},
		},
		"a wildcard of one, and nothing of the owner": {
			[]Listener{listener("shop", "*.example")},
			map[string]string{"bank.example": "kube-system/kedge-gateway/nobody", "a.bank.example": "kube-system/kedge-gateway/nobody", "b.example": "shop"},
		},
		"a guest without routes for the host": {
			[]Listener{listener("shop", ""), {routing.Listener{Name: "blog", Protocol: routing.HTTP, Routes: []string{"blog"}}, "blog"}},
			map[string]string{"shop.example": "shop", "else.test": "blog shop"},
		},
		"a guest with the host itself, and the owner with all hosts": {
			[]Listener{listener("shop", ""), listener("blog", "shop.example"), listener("blog", "")},
			map[string]string{"shop.example": "shop blog", "else.test": "blog shop"},
		},
		"listeners for the hosts themselves": {
			[]Listener{listener("bank", "bank.example"), listener("shop", "*.example"), listener("blog", "")},
			map[string]string{"bank.example": "bank", "shop.example": "shop blog", "b.example": "shop", "else.test": "blog"},
		},
		"TCP takes no hosts": {
			[]Listener{{routing.Listener{Name: "raw", Protocol: routing.RawTCP}, "blog"}},
			map[string]string{"": "raw"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(test.listeners)
			fronts := []Front{{Name: Shared, Ports: []Port{{Number: 80, Transport: routing.TCP, Listeners: test.listeners}}}}
			got := Partition(fronts, routes, owners)[0].Ports[0].Listeners
			for host, want := range test.want {
				if found := strings.Join(listening(got, host), " "); found != want {
					t.Errorf("%s is served by %q, want %q", host, found, want)
				}
			}
			if len(Partition(fronts, nil, nil)[0].Ports[0].Listeners) != len(before) {
				t.Error("there are more listeners if hosts belong to nobody")
			}
			fronts[0].Name.Name = "own"
			if got := Partition(fronts, routes, owners)[0].Ports[0].Listeners; len(got) != len(before) || len(test.listeners) != len(before) {
				t.Error("a front of its own has changed, or the input has")
			}
		})
	}
}

// listening returns the names of the listeners that nodes ask for a host.
func listening(listeners []Listener, host string) (names []string) {
	names = nil
	candidates := append([]string{host}, slices.Collect(hosts.Wider(host))...)
	for _, candidate := range candidates {
		for _, l := range listeners {
			if l.Hostname == candidate {
				names = append(names, l.Name)
			}
		}
		if len(names) > 0 {
			break
		}
	}
	return names
}

// TestPartitionedRoutes has a namespace with many hosts: the listener of each has only the routes
// that requests to it may go to.
func TestPartitionedRoutes(t *testing.T) {
	routes := map[string]*routing.Route{
		"all":      {},
		"a":        {Hostnames: []string{"a.shop.example"}},
		"b":        {Hostnames: []string{"b.shop.example"}},
		"wildcard": {Hostnames: []string{"*.shop.example"}},
		"two":      {Hostnames: []string{"a.shop.example", "b.shop.example", "*.example"}},
		"c":        {Hostnames: []string{"x.c.shop.example"}},
		"other":    {Hostnames: []string{"shop.test"}},
	}
	var claims []hosts.Claim
	for i, text := range []string{"shop a.shop.example", "shop b.shop.example", "shop *.c.shop.example", "bank shop.test"} {
		namespace, host, _ := strings.Cut(text, " ")
		claims = append(claims, hosts.Claim{
			Host: host, Namespace: namespace, Kind: "Ingress", Since: time.Unix(int64(i), 0),
			Object: &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}},
		})
	}
	all := slices.Sorted(maps.Keys(routes))
	listeners := []Listener{
		{routing.Listener{Name: "shop", Protocol: routing.HTTP, Routes: all}, "shop"},
		{routing.Listener{Name: "blog", Protocol: routing.HTTP}, "blog"},
	}
	fronts := []Front{{Name: Shared, Ports: []Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}}}}
	want := map[string]string{
		"":                 "a all b c other two wildcard",
		"a.shop.example":   "a all two wildcard",
		"b.shop.example":   "all b two wildcard",
		"*.c.shop.example": "all c two wildcard",
	}
	got := map[string]string{}
	for _, l := range Partition(fronts, routes, hosts.Decide(claims, nil))[0].Ports[0].Listeners {
		if l.Namespace == "shop" {
			got[l.Hostname] = strings.Join(l.Routes, " ")
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("routes by host are %q, want %q", got, want)
	}
}

// crowd returns a port on which one namespace has many hosts, and lets all of many others in.
func crowd(hostsOfOne, others int) (*hosts.Owners, []Listener, map[string]*routing.Route) {
	var claims []hosts.Claim
	var listeners []Listener
	routes := map[string]*routing.Route{}
	add := func(namespace string, count int, allowed ...string) {
		object := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "web", Annotations: map[string]string{gateways.AllowAnnotation: strings.Join(allowed, ",")},
		}}
		l := Listener{routing.Listener{Name: namespace, Protocol: routing.HTTP}, namespace}
		for i := range count {
			host := fmt.Sprintf("h%d.%s.example", i, namespace)
			claims = append(claims, hosts.Claim{Host: host, Namespace: namespace, Kind: "Ingress", Object: object})
			routes[host] = &routing.Route{Name: host, Hostnames: []string{host}}
			l.Routes = append(l.Routes, host)
		}
		listeners = append(listeners, l)
	}
	guests := make([]string, others)
	for i := range guests {
		guests[i] = fmt.Sprint("guest-", i)
		add(guests[i], 5)
	}
	add("one", hostsOfOne, guests...)
	return hosts.Decide(claims, nil), listeners, routes
}

// TestCrowd wants one listener for each host, although many namespaces may serve it: those that do
// not serve it cost nothing.
func TestCrowd(t *testing.T) {
	owners, listeners, routes := crowd(100, 50)
	fronts := []Front{{Name: Shared, Ports: []Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}}}}
	if got, want := len(Partition(fronts, routes, owners)[0].Ports[0].Listeners), 51+100+50*5; got != want {
		t.Errorf("there are %d listeners, want %d", got, want)
	}
}

// BenchmarkPartition has one Ingress as large as an object can be, in a cluster of 500 namespaces. It
// takes half a second. It took two minutes when each host looked at each namespace.
func BenchmarkPartition(b *testing.B) {
	owners, listeners, routes := crowd(20_000, 500)
	fronts := []Front{{Name: Shared, Ports: []Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}}}}
	b.ReportAllocs()
	for b.Loop() {
		Partition(fronts, routes, owners)
	}
}

// TestManyRoutesForAllHosts has a namespace with many hosts, and many routes for all hosts: the listeners
// of its hosts have a bounded number of names.
func TestManyRoutesForAllHosts(t *testing.T) {
	routes := map[string]*routing.Route{}
	for i := range 1000 {
		routes[fmt.Sprint("r", i)] = &routing.Route{}
	}
	object := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"}}
	var claims []hosts.Claim
	for i := range 2 * maxNames / len(routes) {
		claims = append(claims, hosts.Claim{Host: fmt.Sprintf("h%d.example", i), Namespace: "tenant", Kind: "Ingress", Object: object})
	}
	listeners := []Listener{
		{routing.Listener{Name: "tenant", Protocol: routing.HTTP, Routes: slices.Collect(maps.Keys(routes))}, "tenant"},
		{routing.Listener{Name: "blog", Protocol: routing.HTTP}, "blog"},
	}
	fronts := []Front{{Name: Shared, Ports: []Port{{Number: 80, Transport: routing.TCP, Listeners: listeners}}}}
	names := 0
	for _, l := range Partition(fronts, routes, hosts.Decide(claims, nil))[0].Ports[0].Listeners {
		names += len(l.Routes)
	}
	if names < maxNames || names > maxNames+2*len(routes) {
		t.Errorf("the listeners have %d names of routes, want about %d", names, maxNames)
	}
}
