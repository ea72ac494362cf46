package ingress

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// TestPaths is the table of examples in the documentation of Kubernetes
// (concepts/services-networking/ingress, "Examples" of path types). The first letter of the
// path that must match names the Service.
func TestPaths(t *testing.T) {
	for _, test := range []struct {
		name     string
		paths    []string
		request  string
		answered string
	}{
		{"prefix /", []string{"Prefix / a"}, "/any/path", "a"},
		{"exact", []string{"Exact /foo a"}, "/foo", "a"},
		{"exact, another", []string{"Exact /foo a"}, "/bar", "404"},
		{"exact, slash at the end of the request", []string{"Exact /foo a"}, "/foo/", "404"},
		{"exact, slash at the end of the path", []string{"Exact /foo/ a"}, "/foo", "404"},
		{"prefix", []string{"Prefix /foo a"}, "/foo", "a"},
		{"prefix, slash at the end of the request", []string{"Prefix /foo a"}, "/foo/", "a"},
		{"prefix, slash at the end of the path", []string{"Prefix /foo/ a"}, "/foo", "a"},
		{"prefix, slash at both ends", []string{"Prefix /foo/ a"}, "/foo/", "a"},
		{"prefix that is no element", []string{"Prefix /aaa/bb a"}, "/aaa/bbb", "404"},
		{"prefix of two elements", []string{"Prefix /aaa/bbb a"}, "/aaa/bbb", "a"},
		{"prefix ignores the slash at the end", []string{"Prefix /aaa/bbb/ a"}, "/aaa/bbb", "a"},
		{"prefix matches the slash at the end", []string{"Prefix /aaa/bbb a"}, "/aaa/bbb/", "a"},
		{"prefix matches a path below", []string{"Prefix /aaa/bbb a"}, "/aaa/bbb/ccc", "a"},
		{"prefix of a longer element", []string{"Prefix /aaa/bbb a"}, "/aaa/bbbxyz", "404"},
		{"two prefixes", []string{"Prefix / a", "Prefix /aaa b"}, "/aaa/ccc", "b"},
		{"three prefixes", []string{"Prefix / a", "Prefix /aaa b", "Prefix /aaa/bbb c"}, "/aaa/bbb", "c"},
		{"three prefixes, the shortest", []string{"Prefix / a", "Prefix /aaa b", "Prefix /aaa/bbb c"}, "/ccc", "a"},
		{"default backend", []string{"Prefix /aaa a"}, "/ccc", "404"},
		{"exact before prefix", []string{"Prefix /foo a", "Exact /foo b"}, "/foo", "b"},
		{"specific to the implementation", []string{"ImplementationSpecific /foo/ a"}, "/foo/bar", "a"},
		{"specific and empty", []string{"ImplementationSpecific '' a"}, "/foo", "a"},
		{"the first of two that are the same", []string{"Prefix /foo a", "Prefix /foo/ b"}, "/foo", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld().service("a").service("b").service("c").ingress("i", rules(on("foo.com", test.paths...)))
			result := Compile(&w.Input)
			wantFaults(t, result)
			if got := ask(result, "http", "foo.com", test.request); got != test.answered {
				t.Errorf("%s is answered by %s, want %s", test.request, got, test.answered)
			}
		})
	}
}

// TestPathsThatNodesRefuse has paths that are left out, because no node serves them.
func TestPathsThatNodesRefuse(t *testing.T) {
	w := newWorld().service("a").ingress("i", rules(on("foo.com", "ImplementationSpecific /foo a", "ImplementationSpecific /bar a", "Prefix /baz a")))
	paths := w.Ingresses[0].Spec.Rules[0].HTTP.Paths
	paths[0].Path, paths[1].Path = "/foo\n", "/"+strings.Repeat("a", 10_000)
	result := Compile(&w.Input)
	if err := (&routing.Update{State: result.State}).Check(); err != nil {
		t.Error(err)
	}
	if len(result.Faults) != 2 || result.Faults[0].Reason != ReasonBadPath || len(result.Faults[1].Message) > 1000 {
		t.Errorf("the faults are %v", result.Faults)
	}
	if got := ask(result, "http", "foo.com", "/baz"); got != "a" {
		t.Errorf("another path is answered by %s", got)
	}
}

// TestHosts is the table of wildcards in the same documentation, and what hosts mean beside
// each other.
func TestHosts(t *testing.T) {
	wildcard := rules(on("*.foo.com", "Prefix / a"), on("exact.foo.com", "Prefix /b b"))
	everything := rules(on("", "Prefix / c"))
	for _, test := range []struct {
		name, host, path string
		answered         string
	}{
		{"one label", "bar.foo.com", "/", "a"},
		{"two labels", "baz.bar.foo.com", "/", "c"},
		{"no label", "foo.com", "/", "c"},
		{"exact before the wildcard", "exact.foo.com", "/b", "b"},
		{"a path that the exact host does not have", "exact.foo.com", "/c", "a"},
		{"another", "example.com", "/", "c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld().service("a").service("b").service("c").ingress("i", wildcard).ingress("j", everything)
			result := Compile(&w.Input)
			wantFaults(t, result)
			if got := ask(result, "http", test.host, test.path); got != test.answered {
				t.Errorf("it is answered by %s, want %s", got, test.answered)
			}
		})
	}
}

func TestDefaultBackend(t *testing.T) {
	w := newWorld().service("a").service("b").service("c").service("d").
		ingress("all", nil, defaulted("a")).
		ingress("own", rules(on("foo.com", "Prefix /b b"), on("bare.com")), defaulted("c")).
		ingress("root", rules(on("root.com", "Prefix / d"))).
		ingress("late", rules(on("foo.com", "Prefix / d")))
	result := Compile(&w.Input)
	wantFaults(t, result)
	for _, test := range [][3]string{
		{"example.com", "/x", "a"}, {"foo.com", "/b", "b"}, {"bare.com", "/x", "c"}, {"root.com", "/", "d"},
		// A path of a younger Ingress goes before the default of an older one.
		{"foo.com", "/x", "d"},
	} {
		if got := ask(result, "http", test[0], test[1]); got != test[2] {
			t.Errorf("%s%s is answered by %s, want %s", test[0], test[1], got, test[2])
		}
	}
}

// TestOlder gives two Ingresses the same path, in both orders.
func TestOlder(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		w := newWorld().service("a").service("b").
			ingress("old", rules(on("foo.com", "Prefix /x a"))).
			ingress("young", rules(on("foo.com", "Prefix /x/ b", "Prefix /y b")))
		if reverse {
			slices.Reverse(w.Ingresses)
		}
		result := Compile(&w.Input)
		wantFaults(t, result, "young "+ReasonConflict)
		if got := ask(result, "http", "foo.com", "/x"); got != "a" {
			t.Errorf("/x is answered by %s, want a", got)
		}
		if got := ask(result, "http", "foo.com", "/y"); got != "b" {
			t.Errorf("/y is answered by %s, want b", got)
		}
	}
}

func TestClasses(t *testing.T) {
	none := func(i *netv1.Ingress) { i.Spec.IngressClassName = nil }
	named := func(name string) func(*netv1.Ingress) {
		return func(i *netv1.Ingress) { i.Spec.IngressClassName = &name }
	}
	standard := func(class *netv1.IngressClass) *netv1.IngressClass {
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, netv1.AnnotationIsDefaultIngressClass, "true")
		return class
	}
	younger := func(class *netv1.IngressClass) *netv1.IngressClass {
		class.CreationTimestamp = metav1.Unix(5000, 0)
		return class
	}
	old := func(name string) func(*netv1.Ingress) {
		return func(i *netv1.Ingress) { none(i); annotated("kubernetes.io/ingress.class", name)(i) }
	}
	addressed := func(i *netv1.Ingress) {
		i.Status.LoadBalancer.Ingress = []netv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
	}
	theirs := class("traefik", "traefik.io/ingress-controller")
	for _, test := range []struct {
		name    string
		change  func(*netv1.Ingress)
		classes []*netv1.IngressClass
		setting []string
		served  bool
		fault   bool
	}{
		{name: "kedge", change: named("kedge"), classes: []*netv1.IngressClass{class("kedge", Controller)}, served: true},
		{name: "kedge, whose class was deleted", change: named("kedge"), served: true},
		{name: "another class of kedge's controller", change: named("web"), classes: []*netv1.IngressClass{class("web", Controller)}, served: true},
		{name: "unknown", change: named("web")},
		{name: "empty", change: named("")},
		{name: "none", change: none, classes: []*netv1.IngressClass{class("kedge", Controller)}},
		{name: "none, and kedge is the default", change: none, classes: []*netv1.IngressClass{standard(class("kedge", Controller))}, served: true},
		{name: "none, and the newest default is another", change: none, classes: []*netv1.IngressClass{younger(standard(class("a", "b"))), standard(class("kedge", Controller))}},
		{name: "none, and the newest default is kedge", change: none, classes: []*netv1.IngressClass{standard(class("a", "b")), younger(standard(class("kedge", Controller)))}, served: true},
		{name: "annotation", change: old("kedge"), served: true},
		{name: "annotation with another class", change: old("web")},
		{name: "annotation of nginx", change: old("nginx"), fault: true},
		{name: "traefik", change: named("traefik"), fault: true},
		{name: "traefik, and somebody has given it an address", change: func(i *netv1.Ingress) { named("traefik")(i); addressed(i) }},
		{name: "traefik with its controller", change: named("traefik"), classes: []*netv1.IngressClass{theirs}},
		{name: "traefik by the setting", change: named("traefik"), setting: []string{"nginx", "traefik"}, served: true},
		{name: "traefik by the setting and the annotation", change: old("traefik"), setting: []string{"traefik"}, served: true},
		{name: "traefik by the setting, with its controller", change: named("traefik"), setting: []string{"traefik"}, classes: []*netv1.IngressClass{theirs}, fault: true},
		{name: "somebody else's kedge", change: named("kedge"), classes: []*netv1.IngressClass{class("kedge", "example.com/other")}, fault: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld().service("a").ingress("i", rules(on("foo.com", "Prefix / a")), test.change)
			w.Classes, w.ServedClasses = test.classes, test.setting
			result := Compile(&w.Input)
			if served := result.Served[w.Ingresses[0]]; served != test.served || served != (len(result.Fronts) == 1) || served != (len(result.State.Routes) == 1) {
				t.Errorf("served %t with %d fronts, want %t", served, len(result.Fronts), test.served)
			}
			var want []string
			if test.fault {
				want = []string{"i " + ReasonNoController}
			}
			wantFaults(t, result, want...)
		})
	}
}

func TestBackends(t *testing.T) {
	numbered := backendOf("a")
	byName := netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: "a", Port: netv1.ServiceBackendPort{Name: "web"}}}
	port := func(change func(*corev1.ServicePort)) func(*corev1.Service) {
		return func(s *corev1.Service) { change(&s.Spec.Ports[0]) }
	}
	for _, test := range []struct {
		name     string
		backend  netv1.IngressBackend
		change   func(*corev1.Service)
		protocol string // of the annotation
		want     routing.BackendProtocol
		tls      bool
		fault    string
	}{
		{name: "number", backend: numbered},
		{name: "name", backend: byName},
		{name: "unknown name", backend: byName, change: port(func(p *corev1.ServicePort) { p.Name = "api" }), fault: `the Service "a" has no TCP port with the name "web"`},
		{name: "unknown number", backend: numbered, change: port(func(p *corev1.ServicePort) { p.Port = 81 }), fault: `the Service "a" has no TCP port 80`},
		{name: "UDP", backend: numbered, change: port(func(p *corev1.ServicePort) { p.Protocol = corev1.ProtocolUDP }), fault: `the Service "a" has no TCP port 80`},
		{name: "no Service", backend: backendOf("b"), fault: `the Service "b" does not exist`},
		{name: "resource", backend: netv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Kind: "Bucket"}}, fault: "is no Service"},
		{name: "ExternalName", backend: numbered, change: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
		}, fault: "ExternalName"},
		{name: "HTTP/2", backend: numbered, change: port(func(p *corev1.ServicePort) { p.AppProtocol = ptr.To("kubernetes.io/h2c") }), want: routing.PlainH2},
		{name: "https by its protocol", backend: numbered, change: port(func(p *corev1.ServicePort) { p.AppProtocol = ptr.To("HTTPS") }), tls: true},
		{name: "https by its name", backend: numbered, change: port(func(p *corev1.ServicePort) { p.Name = "https-web" }), tls: true},
		{name: "annotation HTTP", backend: numbered, protocol: "http", change: port(func(p *corev1.ServicePort) { p.Name = "https" })},
		{name: "annotation HTTPS", backend: numbered, protocol: "HTTPS", tls: true},
		{name: "annotation H2C", backend: numbered, protocol: "H2C", want: routing.PlainH2},
		{name: "annotation GRPC", backend: numbered, protocol: "GRPC", want: routing.PlainH2},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			if test.change == nil {
				test.change = func(*corev1.Service) {}
			}
			w.service("a", test.change).ingress("i", nil, func(i *netv1.Ingress) { i.Spec.DefaultBackend = &test.backend })
			if test.protocol != "" {
				annotated(AnnotationProtocol, test.protocol)(w.Ingresses[0])
			}
			result := Compile(&w.Input)
			if test.fault != "" {
				wantFaults(t, result, "i "+ReasonBadBackend)
				if !strings.Contains(result.Faults[0].Message, test.fault) {
					t.Errorf("fault %q, want %q in it", result.Faults[0].Message, test.fault)
				}
				if got := ask(result, "http", "foo.com", "/"); got != "503" || len(result.State.Backends) > 0 {
					t.Errorf("answered by %s with backends %v, want 503", got, result.State.Backends)
				}
				return
			}
			wantFaults(t, result)
			if len(result.State.Backends) != 1 || !result.Services[types.NamespacedName{Namespace: "shop", Name: "a"}] {
				t.Fatalf("got backends %v and Services %v", result.State.Backends, result.Services)
			}
			for _, backend := range result.State.Backends {
				if backend.Protocol != test.want || (backend.TLS != nil) != test.tls || !slices.Equal(backend.Endpoints, []netip.AddrPort{endpoint}) {
					t.Errorf("got %+v", backend)
				}
				if backend.TLS != nil && !backend.TLS.Insecure {
					t.Error("the backend must prove who it is, and nobody has said how")
				}
			}
		})
	}
}

// TestEndpoints has endpoints that somebody has written by hand.
func TestEndpoints(t *testing.T) {
	w := newWorld().service("a").ingress("i", nil, defaulted("a"))
	w.endpoints("a", "127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1", "fe80::1%eth0", "ff02::1", "10.42.0.9", "192.168.1.5")
	result := Compile(&w.Input)
	for _, backend := range result.State.Backends {
		if want := []netip.AddrPort{endpoint, netip.MustParseAddrPort("192.168.1.5:8080")}; !slices.Equal(backend.Endpoints, want) {
			t.Errorf("got endpoints %v, want %v", backend.Endpoints, want)
		}
	}
}

// TestUnchanged has everything, and looks whether the input is as it was. Two runs have the
// same result.
func TestUnchanged(t *testing.T) {
	w := newWorld().service("a").service("b").certificate(t, "tls", "foo.com").secret("users", map[string]string{"auth": "a:{SHA}x"}).
		ingress("i", rules(on("foo.com", "Prefix /a/ a", "Exact /b b"), on("*.foo.com", "Prefix / missing")), secured("tls", "foo.com"), secured("none"),
			annotated(AnnotationRedirect, "true"), annotated(AnnotationAuthSecret, "users"), annotated(AnnotationAuthRealm, "realm"), defaulted("b")).
		ingress("j", rules(on("foo.com", "Prefix /a b")), secured("tls"), annotated(AnnotationMaxBody, "x"))
	slices.Reverse(w.Ingresses)
	var ingresses []*netv1.Ingress
	for _, ingress := range w.Ingresses {
		ingresses = append(ingresses, ingress.DeepCopy())
	}
	services := map[string]*corev1.Service{}
	for name, service := range w.services {
		services[name] = service.DeepCopy()
	}
	secrets := map[string]*corev1.Secret{}
	for name, secret := range w.secrets {
		secrets[name] = secret.DeepCopy()
	}
	first := Compile(&w.Input)
	if !equality.Semantic.DeepEqual(ingresses, w.Ingresses) || !equality.Semantic.DeepEqual(services, w.services) || !equality.Semantic.DeepEqual(secrets, w.secrets) {
		t.Error("Compile changed its input")
	}
	second := Compile(&w.Input)
	if !reflect.DeepEqual(first.State, second.State) || !reflect.DeepEqual(first.Fronts, second.Fronts) || !slices.Equal(first.Faults, second.Faults) {
		t.Error("the second run has another result")
	}
	if len(first.Fronts) != 1 || first.Fronts[0].Name != front.Shared || first.Fronts[0].Gateway != nil {
		t.Errorf("got fronts %v", first.Fronts)
	}
}
