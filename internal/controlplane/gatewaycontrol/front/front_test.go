package front

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// port makes a port with a listener of each protocol.
func port(number uint16, transport routing.Transport, listeners ...string) Port {
	made := Port{Number: number, Transport: transport}
	for _, name := range listeners {
		protocol := routing.HTTP
		switch {
		case transport == routing.UDP:
			protocol = routing.RawUDP
		case name[0] == 's':
			protocol = routing.HTTPS
		case name[0] == 'p':
			protocol = routing.TLSPassthrough
		case name[0] == 't':
			protocol = routing.RawTCP
		}
		made.Listeners = append(made.Listeners, Listener{Listener: routing.Listener{Name: name, Protocol: protocol}})
	}
	return made
}

func names(of Port) (all []string) {
	for _, listener := range of.Listeners {
		all = append(all, listener.Name)
	}
	return all
}

func TestMerge(t *testing.T) {
	own := types.NamespacedName{Namespace: "shop", Name: "web-kedge"}
	a := []Front{
		{Name: own, Gateway: &gwv1.Gateway{}, Ports: []Port{port(80, routing.TCP, "own")}},
		{Name: Shared, Ports: []Port{port(80, routing.TCP, "http"), port(443, routing.TCP, "passthrough"), port(9000, routing.TCP, "tcp")}},
	}
	more := port(443, routing.TCP, "secure")
	more.HTTP3 = true
	b := []Front{{Name: Shared, Ports: []Port{port(80, routing.TCP, "ingress"), more, port(443, routing.UDP, "udp")}}}
	before := len(a[1].Ports[0].Listeners)
	got := Merge(a, b)
	if len(got) != 2 || got[0].Name != own || got[1].Name != Shared {
		t.Fatalf("got %+v", got)
	}
	want := [][]string{{"http", "ingress"}, {"passthrough", "secure"}, {"tcp"}, {"udp"}}
	for i, port := range got[1].Ports {
		if i >= len(want) || !slices.Equal(names(port), want[i]) {
			t.Errorf("port %d: got listeners %v", port.Number, names(port))
		}
	}
	if !got[1].Ports[1].HTTP3 || got[1].Ports[2].HTTP3 {
		t.Errorf("a port has HTTP/3 if listeners ask for it, got %+v", got[1].Ports)
	}
	if len(a[1].Ports[0].Listeners) != before || len(a[1].Ports) != 3 {
		t.Error("Merge has changed its input")
	}
}

// exampleFront is the front of a Gateway.
func exampleFront() Front {
	quic := port(443, routing.UDP, "s")
	quic.HTTP3 = true
	secure := port(443, routing.TCP, "s")
	secure.HTTP3 = true
	return Front{
		Name:        types.NamespacedName{Namespace: "shop", Name: "web-kedge"},
		Gateway:     &gwv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}},
		Labels:      map[string]string{"team": "shop", managedByLabel: "user"},
		Annotations: map[string]string{"kedge.dev/pool": "lan"},
		Addresses:   []string{"192.0.2.1", "2001:db8::1"},
		Ports:       []Port{port(80, routing.TCP, "http"), secure, quic},
	}
}

// allocate gives each port a node port, as the API server does: protocols of the same number
// share one.
func allocate(service *corev1.Service) {
	service.UID, service.ResourceVersion = "2", "7"
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for i := range service.Spec.Ports {
		service.Spec.Ports[i].NodePort = 30000 + service.Spec.Ports[i].Port
	}
}

// served returns the Service of a front as it is when nodes can listen.
func served(f Front) *corev1.Service {
	service := Service(f)
	allocate(service)
	return Update(service, Service(f))
}

func TestService(t *testing.T) {
	f := exampleFront()
	service := Service(f)
	if owner := metav1.GetControllerOf(service); owner == nil || owner.UID != "1" || owner.Kind != "Gateway" {
		t.Errorf("got owner %v", owner)
	}
	if service.Labels["team"] != "shop" || service.Labels[managedByLabel] != managedBy {
		t.Errorf("got labels %v", service.Labels)
	}
	if service.Annotations[servicelb.AddressAnnotation] != "192.0.2.1,2001:db8::1" || service.Annotations[servicelb.PoolAnnotation] != "lan" {
		t.Errorf("got annotations %v", service.Annotations)
	}
	if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		t.Errorf("got %+v", service.Spec)
	}
	if got := service.Spec.Ports[2]; got.Name != "udp-443" || got.Protocol != corev1.ProtocolUDP || got.Port != 443 {
		t.Errorf("got port %+v", got)
	}
	f.Annotations = map[string]string{PolicyAnnotation: "Cluster"}
	if got := Service(f).Spec.ExternalTrafficPolicy; got != corev1.ServiceExternalTrafficPolicyCluster {
		t.Errorf("with the annotation the policy is %s", got)
	}
	if !IsFront(service) || !IsFront(Service(Front{Name: Shared})) {
		t.Error("a front is not known as one")
	}
	copied := service.DeepCopy()
	copied.Name = "copy"
	ownerless := service.DeepCopy()
	ownerless.OwnerReferences = nil
	for _, foreign := range []*corev1.Service{copied, ownerless, {ObjectMeta: metav1.ObjectMeta{Namespace: Shared.Namespace, Name: Shared.Name}}} {
		if IsFront(foreign) {
			t.Errorf("%s/%s of somebody else counts as a front", foreign.Namespace, foreign.Name)
		}
	}
}

func TestUpdate(t *testing.T) {
	f := exampleFront()
	current := served(f)
	for _, port := range current.Spec.Ports {
		if port.TargetPort != intstr.FromInt32(port.NodePort) || port.NodePort == 0 {
			t.Errorf("port %s has the target port %s", port.Name, port.TargetPort.String())
		}
	}
	if again := Update(current, Service(f)); !equality.Semantic.DeepEqual(current, again) {
		t.Errorf("a Service that is as wanted changes: %+v", again)
	}
	current.Annotations["metallb.io/ip-allocated-from-pool"] = "theirs"
	f.Labels, f.Annotations, f.Addresses = nil, map[string]string{"new": "1"}, nil
	f.Ports = append(f.Ports[:1], port(8080, routing.TCP, "http"))
	now := Update(current, Service(f))
	if now.Annotations["metallb.io/ip-allocated-from-pool"] != "theirs" || now.Annotations["new"] != "1" {
		t.Errorf("got annotations %v", now.Annotations)
	}
	for _, gone := range []string{servicelb.PoolAnnotation, servicelb.AddressAnnotation} {
		if _, has := now.Annotations[gone]; has {
			t.Errorf("the annotation %s of the Gateway stays", gone)
		}
	}
	if _, has := now.Labels["team"]; has || !IsFront(now) {
		t.Errorf("got labels %v", now.Labels)
	}
	if len(now.Spec.Ports) != 2 || now.Spec.Ports[0].NodePort != 30080 || now.Spec.Ports[1].NodePort != 0 {
		t.Errorf("got ports %+v", now.Spec.Ports)
	}
	if current.Labels["team"] != "shop" {
		t.Error("Update has changed its input")
	}
}

func TestSockets(t *testing.T) {
	f := exampleFront()
	options := Options{ProxyProtocol: true, Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	sockets := func(service *corev1.Service) map[string]*routing.Socket {
		made, of := Sockets([]Front{f}, func(types.NamespacedName) *corev1.Service { return service }, options)
		for name := range made {
			if of[name] != f.Name {
				t.Errorf("socket %s is of front %s", name, of[name])
			}
		}
		return made
	}
	if got := sockets(nil); len(got) != 0 {
		t.Errorf("without a Service: %v", got)
	}
	fresh := Service(f)
	allocate(fresh)
	if got := sockets(fresh); len(got) != 0 {
		t.Errorf("before there are target ports: %v", got)
	}
	got := sockets(served(f))
	want := map[string]*routing.Socket{
		"30080/tcp": {Transport: routing.TCP, Port: 30080, PublicPort: 80, Listeners: listenersOf(f.Ports[0].Listeners), ProxyProtocol: true, Trusted: options.Trusted},
		"30443/tcp": {Transport: routing.TCP, Port: 30443, PublicPort: 443, Listeners: listenersOf(f.Ports[1].Listeners), HTTP3: true, ProxyProtocol: true, Trusted: options.Trusted},
		"30443/udp": {Transport: routing.UDP, Port: 30443, PublicPort: 443, Listeners: listenersOf(f.Ports[2].Listeners), HTTP3: true, Trusted: options.Trusted},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	f.Ports = f.Ports[:2]
	if got := sockets(served(f)); got["30443/tcp"].HTTP3 {
		t.Error("answers promise HTTP/3 without a socket for it")
	}
	// HTTP/3 leaves alone the names that listeners of TLS have over TCP.
	mixed := exampleFront()
	name := func(protocol routing.Protocol, hostname string) Listener {
		return Listener{Listener: routing.Listener{Name: "l", Protocol: protocol, Hostname: hostname}}
	}
	mixed.Ports[1].Listeners = []Listener{
		name(routing.HTTPS, "*.a"), name(routing.TLSPassthrough, "pass.a"), name(routing.TLSTerminate, "end.a"), name(routing.HTTPS, "end.a"),
		name(routing.HTTPS, "web.a"), name(routing.TLSTerminate, "web.a"), name(routing.TLSTerminate, ""),
	}
	service := served(mixed)
	all, _ := Sockets([]Front{mixed}, func(types.NamespacedName) *corev1.Service { return service }, options)
	if want := []string{"pass.a", "end.a", ""}; !slices.Equal(all["30443/udp"].Reserved, want) || all["30443/tcp"].Reserved != nil {
		t.Errorf("the names %q are reserved over UDP, and %q over TCP, want %q", all["30443/udp"].Reserved, all["30443/tcp"].Reserved, want)
	}
	if err := all["30443/udp"].Check(); err != nil {
		t.Error(err)
	}
	foreign := served(f)
	foreign.Labels = nil
	if got := sockets(foreign); len(got) != 0 {
		t.Errorf("with somebody else's Service: %v", got)
	}
}

// node makes a node with open sockets.
func node(name string, open string, addresses ...string) Node {
	listening, err := gateways.ParseListening(open)
	if err != nil {
		panic(err)
	}
	n := Node{Name: name, Zone: "z", Listening: listening}
	for _, address := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(address))
	}
	return n
}

func TestSlices(t *testing.T) {
	f := exampleFront()
	service := served(f)
	all := "30080/tcp,30443/tcp,30443/udp"
	got := Slices(f, service, []Node{
		node("b", all, "192.0.2.2", "2001:db8::2"), node("a", all, "192.0.2.1"),
		node("partly", "30080/tcp,1/tcp", "192.0.2.3"), node("silent", "", "192.0.2.4"), node("other", "30081/tcp", "192.0.2.5"),
	})
	type summary struct {
		name, family     string
		ports, endpoints []string
	}
	var found []summary
	for _, slice := range got {
		s := summary{name: slice.Name, family: string(slice.AddressType)}
		for _, port := range slice.Ports {
			s.ports = append(s.ports, *port.Name)
		}
		for _, endpoint := range slice.Endpoints {
			s.endpoints = append(s.endpoints, *endpoint.NodeName+"="+endpoint.Addresses[0])
		}
		found = append(found, s)
		if slice.Labels[discoveryv1.LabelServiceName] != service.Name || !IsSlice(slice) || metav1.GetControllerOf(slice).UID != service.UID {
			t.Errorf("slice %s has labels %v and owners %v", slice.Name, slice.Labels, slice.OwnerReferences)
		}
	}
	want := []summary{
		{"web-kedge-ipv4", "IPv4", []string{"tcp-80", "tcp-443", "udp-443"}, []string{"a=192.0.2.1", "b=192.0.2.2"}},
		{"web-kedge-ipv4-2", "IPv4", []string{"tcp-80"}, []string{"partly=192.0.2.3"}},
		{"web-kedge-ipv6", "IPv6", []string{"tcp-80", "tcp-443", "udp-443"}, []string{"b=2001:db8::2"}},
	}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("got  %v\nwant %v", found, want)
	}
	for _, labels := range []map[string]string{got[0].Labels, service.Labels, Service(Front{Name: Shared}).Labels} {
		if faults := validation.ValidateLabels(labels, nil); len(faults) > 0 {
			t.Error(faults)
		}
	}
	service.Spec.IPFamilies = service.Spec.IPFamilies[:1]
	if got := Slices(f, service, []Node{node("b", all, "2001:db8::2")}); len(got) != 0 {
		t.Errorf("a Service without IPv6 has %v", got)
	}
	var many []Node
	for range maxEndpoints + 1 {
		many = append(many, node("n", all, "192.0.2.1"))
	}
	if got := Slices(f, service, many); len(got) != 2 || len(got[0].Endpoints) != maxEndpoints || len(got[1].Endpoints) != 1 {
		t.Errorf("got %d slices of more endpoints than one may have", len(got))
	}
}
