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

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
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

// claim makes a namespace the owner of a host.
func claim(namespace, host string) []hosts.Claim {
	owner := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	return []hosts.Claim{{Host: host, Namespace: namespace, Kind: "Ingress", Object: owner, Since: time.Unix(1, 0)}}
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
		owner     []hosts.Claim
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
		{name: "no full name", ingresses: []*netv1.Ingress{ingress("i", "tls", "localhost")}, refused: []string{"not a full host name"}},
		{name: "too many hosts", ingresses: []*netv1.Ingress{ingress("i", "tls", many...)}, refused: []string{"use several Secrets"}},
		{name: "bad address", ingresses: []*netv1.Ingress{annotate(ingress("i", "tls", "a.example.com"), AnnotationACME, "admin")}, refused: []string{"e-mail address"}},
		{name: "bad authority", ingresses: []*netv1.Ingress{annotate(ingress("i", "tls", "a.example.com"), AnnotationServer, "http://example.com")}, refused: []string{"https://"}},
		{name: "a host of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			owner: claim("bank", "a.example.com"), refused: []string{"belongs to the namespace bank"}},
		{name: "a host below a wildcard of another namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.b.example.com")},
			owner: claim("bank", "*.example.com"), refused: []string{"belongs to the namespace bank"}},
		{name: "a host of this namespace", ingresses: []*netv1.Ingress{ingress("i", "tls", "a.example.com")},
			owner: claim("shop", "a.example.com"), want: []string{"shop/tls [a.example.com]"}},
		{name: "a younger Gateway, and the host of an older Ingress", gateways: []*gwv1.Gateway{gateway("g", "tls", "a.example.com")},
			owner: claim("bank", "a.example.com"), refused: []string{"belongs to the namespace bank, because the Ingress owner there has it already"}},
		{name: "a Gateway with addresses of its own", gateways: []*gwv1.Gateway{in(gateway("own", "tls", "a.example.com"), "shop", 2000)},
			owner: claim("bank", "a.example.com"), want: []string{"shop/tls [a.example.com]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := &Objects{Ingresses: test.ingresses, Gateways: test.gateways, Owners: hosts.Decide(test.owner, nil), OwnFronts: map[string]bool{"shop/own": true}}
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
