package acme

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// in moves an object to a namespace and to a time of creation.
func in[T metav1.Object](object T, namespace string, created int64) T {
	object.SetNamespace(namespace)
	object.SetCreationTimestamp(metav1.Unix(created, 0))
	return object
}

// annotate asks for certificates, and sets another annotation.
func annotate[T metav1.Object](object T, key, value string) T {
	object.SetAnnotations(map[string]string{AnnotationACME: "true", key: value})
	return object
}

// route makes a route as the compilers do.
func route(kind, namespace string, created int64, hosts ...string) *routing.Route {
	return &routing.Route{Name: kind + "/" + namespace + "/r", Created: time.Unix(created, 0), Hostnames: hosts}
}

func TestWanted(t *testing.T) {
	many := make([]string, maxHosts+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example.com", i)
	}
	elsewhere := gateway("g", "tls", "a.example.com")
	elsewhere.Spec.Listeners[0].TLS.CertificateRefs[0].Namespace = ptr.To(gwv1.Namespace("kube-system"))
	plain := gateway("g", "tls", "a.example.com")
	plain.Spec.Listeners[0].Protocol = gwv1.TLSProtocolType
	rules := ingress("i", "tls")
	rules.Spec.Rules = []netv1.IngressRule{{Host: "b.example.com"}, {Host: "a.example.com"}, {}}
	two := ingress("i", "tls", "a.example.com")
	two.Spec.TLS = append(two.Spec.TLS, netv1.IngressTLS{SecretName: "tls", Hosts: []string{"b.example.com"}}, netv1.IngressTLS{SecretName: "other", Hosts: []string{"c.example.com"}}, netv1.IngressTLS{Hosts: []string{"d.example.com"}})
	for _, test := range []struct {
		name      string
		ingresses []*netv1.Ingress
		gateways  []*gwv1.Gateway
		routes    []*routing.Route
		// want has NAMESPACE/SECRET HOSTS, and refused has what messages say.
		want, refused []string
	}{
		{name: "nothing"},
		{name: "Ingress", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")}, want: []string{"shop/tls [a.example.com]"}},
		{name: "not asked", ingresses: []*netv1.Ingress{annotate(ingress("i", "tls", "a.example.com"), AnnotationACME, "false")}},
		{name: "several entries", ingresses: []*netv1.Ingress{two}, want: []string{"shop/other [c.example.com]", "shop/tls [a.example.com b.example.com]"}},
		{name: "hosts of the rules", ingresses: []*netv1.Ingress{rules}, want: []string{"shop/tls [a.example.com b.example.com]"}},
		{name: "no host", ingresses: []*netv1.Ingress{ingress("i", "tls")}, refused: []string{"no host is named"}},
		{name: "Gateway", gateways: []*gwv1.Gateway{gateway("g", "tls", "a.example.com")}, want: []string{"shop/tls [a.example.com]"}},
		{name: "Gateway with a Secret elsewhere", gateways: []*gwv1.Gateway{elsewhere}, refused: []string{"nothing names a Secret"}},
		{name: "Gateway that speaks no HTTPS", gateways: []*gwv1.Gateway{plain}, refused: []string{"nothing names a Secret"}},
		{name: "one Secret for two objects", ingresses: []*netv1.Ingress{ingress("i", "tls", "b.example.com"), ingress("j", "tls", "a.example.com", "b.example.com")},
			want: []string{"shop/tls [a.example.com b.example.com]"}},
		{name: "wildcard", ingresses: []*netv1.Ingress{ingress("i", "tls", "*.example.com")}, refused: []string{"use cert-manager"}},
		{name: "no full name", ingresses: []*netv1.Ingress{ingress("i", "tls", "localhost")}, refused: []string{"no full host name"}},
		{name: "too many hosts", ingresses: []*netv1.Ingress{ingress("i", "tls", many...)}, refused: []string{"use several Secrets"}},
		{name: "bad address", ingresses: []*netv1.Ingress{annotate(ingress("i", "tls", "a.example.com"), AnnotationACME, "admin")}, refused: []string{"e-mail address"}},
		{name: "bad authority", ingresses: []*netv1.Ingress{annotate(ingress("i", "tls", "a.example.com"), AnnotationServer, "http://example.com")}, refused: []string{"https://"}},
		{name: "a younger route of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			routes: []*routing.Route{route("HTTPRoute", "bank", 2000, "a.example.com"), route("Ingress", "shop", 1, "a.example.com")}, want: []string{"shop/tls [a.example.com]"}},
		{name: "an older route of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			routes: []*routing.Route{route("HTTPRoute", "bank", 1, "a.example.com")}, refused: []string{"belongs to HTTPRoute bank/r"}},
		{name: "a route of the same second", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			routes: []*routing.Route{route("HTTPRoute", "bank", 1000, "a.example.com")}, refused: []string{"belongs to HTTPRoute bank/r"}},
		{name: "an older wildcard of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.b.example.com")},
			routes: []*routing.Route{route("Ingress", "bank", 1, "*.example.com")}, refused: []string{"belongs to Ingress bank/r"}},
		{name: "a younger Gateway of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			gateways: []*gwv1.Gateway{in(gateway("g", "tls", "*.example.com"), "infra", 2000)}, refused: []string{"use cert-manager", "belongs to Gateway infra/g"}},
		{name: "a Gateway whose routes are elsewhere", gateways: []*gwv1.Gateway{gateway("g", "tls", "a.example.com")},
			routes: []*routing.Route{route("HTTPRoute", "bank", 1, "a.example.com")}, want: []string{"shop/tls [a.example.com]"}},
		{name: "two Gateways", gateways: []*gwv1.Gateway{gateway("g", "tls", "a.example.com"), in(gateway("h", "tls", "a.example.com"), "bank", 2000)},
			want: []string{"shop/tls [a.example.com]"}, refused: []string{"belongs to Gateway shop/g"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := &Objects{Ingresses: test.ingresses, Gateways: test.gateways, Routes: map[string]*routing.Route{}}
			for i, route := range test.routes {
				o.Routes[fmt.Sprint(i)] = route
			}
			wanted, faults := wantedBy(o, LetsEncrypt)
			var got []string
			for _, c := range wanted {
				got = append(got, fmt.Sprint(c.secret, " ", c.hosts))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("wanted %v, want %v", got, test.want)
			}
			if len(faults) != len(test.refused) {
				t.Fatalf("got faults %v, want %q", faults, test.refused)
			}
			all := fmt.Sprint(faults)
			for _, want := range test.refused {
				if !strings.Contains(all, want) {
					t.Errorf("got faults %s, want %q in them", all, want)
				}
			}
		})
	}
}

// TestFronts has an object of each kind, with one Secret. The oldest chooses the account.
func TestFronts(t *testing.T) {
	o := &Objects{
		Ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
		Gateways:  []*gwv1.Gateway{in(annotate(gateway("g", "tls", "b.example.com"), AnnotationServer, "https://ca.example.com/dir"), "shop", 1)},
	}
	wanted, faults := wantedBy(o, LetsEncrypt)
	if len(wanted) != 1 || len(faults) > 0 {
		t.Fatalf("got %v with faults %v", wanted, faults)
	}
	c := wanted[0]
	if want := []string{"shop/g", ""}; !slices.Equal(c.fronts, want) || c.directory != "https://ca.example.com/dir" || c.email != "" || len(c.objects) != 2 {
		t.Errorf("got %+v", c)
	}
	other := account{LetsEncrypt, ""}
	if c.key() == other.key() {
		t.Error("accounts of two authorities have one key")
	}
}

// TestPreferred has Gateways with and without port 80. Attempts take turns.
func TestPreferred(t *testing.T) {
	secure, both := gateway("g", "tls", "a.example.com"), gateway("g", "tls", "a.example.com")
	both.Spec.Listeners = append(both.Spec.Listeners, gwv1.Listener{Protocol: gwv1.HTTPProtocolType, Port: 80})
	for name, test := range map[string]struct {
		objects Objects
		want    []string
	}{
		"an Ingress":              {Objects{Ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")}}, []string{http01, tlsALPN01, http01}},
		"a Gateway":               {Objects{Gateways: []*gwv1.Gateway{both}}, []string{http01, tlsALPN01, http01}},
		"a Gateway without HTTP":  {Objects{Gateways: []*gwv1.Gateway{secure}}, []string{tlsALPN01, http01, tlsALPN01}},
		"one of two without HTTP": {Objects{Gateways: []*gwv1.Gateway{both, secure}}, []string{tlsALPN01, http01, tlsALPN01}},
	} {
		wanted, faults := wantedBy(&test.objects, LetsEncrypt)
		if len(wanted) != 1 || len(faults) > 0 {
			t.Fatalf("%s: got %v with faults %v", name, wanted, faults)
		}
		for failures, want := range test.want {
			if got := preferred(wanted[0], failures); got != want {
				t.Errorf("%s: after %d failures it prefers %s, want %s", name, failures, got, want)
			}
		}
	}
}
