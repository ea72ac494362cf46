package ingress

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
)

func TestHTTPS(t *testing.T) {
	w := newWorld().service("a").service("b").service("c").
		certificate(t, "foo", "foo.com", "www.foo.com").certificate(t, "wild", "*.bar.com").certificate(t, "later", "foo.com").
		ingress("i", rules(on("foo.com", "Prefix / a"), on("www.foo.com", "Prefix / a")), secured("foo", "foo.com", "www.foo.com")).
		ingress("j", rules(on("foo.com", "Prefix /b b"), on("plain.com", "Prefix / b")), secured("later", "foo.com")).
		ingress("k", rules(on("x.bar.com", "Prefix / c"), on("*.bar.com", "Prefix /any b")), secured("wild", "*.bar.com"))
	result := Compile(&w.Input)
	wantFaults(t, result)
	for _, test := range [][4]string{
		{"https", "foo.com", "/", "a"}, {"https", "foo.com", "/b", "b"}, {"https", "www.foo.com", "/", "a"},
		{"https", "plain.com", "/", "refused"}, {"http", "plain.com", "/", "b"},
		{"https", "x.bar.com", "/", "c"}, {"https", "y.bar.com", "/any", "b"}, {"https", "bar.com", "/", "refused"},
		{"https", "a.y.bar.com", "/any", "404"},
	} {
		if got := ask(result, test[0], test[1], test[2]); got != test[3] {
			t.Errorf("%s://%s%s is answered by %s, want %s", test[0], test[1], test[2], got, test[3])
		}
	}
	if got, want := listenerOf(result, "https", "foo.com").Certificates, []string{"Secret/shop/foo", "Secret/shop/later"}; !slices.Equal(got, want) {
		t.Errorf("foo.com has the certificates %v, want %v", got, want)
	}
	ports := result.Fronts[0].Ports
	if len(ports) != 3 || ports[1].Number != 443 || !ports[1].HTTP3 || ports[2].Transport != routing.UDP || !ports[2].HTTP3 {
		t.Errorf("got ports %+v", ports)
	}
}

// TestCertificateFaults has Secrets that cannot be used. HTTP is served all the same.
func TestCertificateFaults(t *testing.T) {
	broken := newWorld().certificate(t, "tls", "foo.com").secrets["shop/tls"]
	other := newWorld().certificate(t, "tls", "foo.com").secrets["shop/tls"]
	broken.Data["tls.key"] = other.Data["tls.key"]
	for _, test := range []struct {
		name    string
		prepare func(*world)
		secret  string
		message string
		served  bool
	}{
		{"without a name", func(*world) {}, "", "no secretName", false},
		{"missing", func(*world) {}, "tls", `the Secret "tls" does not exist`, false},
		{"missing, but kedge will get it", func(w *world) { annotated(acme.AnnotationACME, "true")(w.Ingresses[0]) }, "tls", "", false},
		{"without a key", func(w *world) { w.secret("tls", map[string]string{"tls.crt": "x"}) }, "tls", "no tls.crt or no tls.key", false},
		{"no certificate", func(w *world) { w.secret("tls", map[string]string{"tls.crt": "x", "tls.key": "y"}) }, "tls", "no certificate that can be used", false},
		{"another key", func(w *world) { w.secrets["shop/tls"] = broken }, "tls", "private key does not match", false},
		{"another host", func(w *world) { w.certificate(t, "tls", "example.com") }, "tls", `not for the host "foo.com"`, true},
		{"good", func(w *world) { w.certificate(t, "tls", "foo.com") }, "tls", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld().service("a").ingress("i", rules(on("foo.com", "Prefix / a")), secured(test.secret, "foo.com"))
			test.prepare(w)
			result := Compile(&w.Input)
			if test.message == "" {
				wantFaults(t, result)
			} else if wantFaults(t, result, "i "+ReasonBadCertificate); !strings.Contains(result.Faults[0].Message, test.message) {
				t.Errorf("fault %q, want %q in it", result.Faults[0].Message, test.message)
			}
			if served := ask(result, "https", "foo.com", "/") == "a"; served != test.served || len(result.Fronts[0].Ports) == 1 == served {
				t.Errorf("HTTPS served %t with ports %v, want %t", served, result.Fronts[0].Ports, test.served)
			}
			if got := ask(result, "http", "foo.com", "/"); got != "a" {
				t.Errorf("HTTP is answered by %s", got)
			}
			if test.secret != "" && !result.Secrets[types.NamespacedName{Namespace: "shop", Name: test.secret}] {
				t.Errorf("the Ingress refers to the Secrets %v", result.Secrets)
			}
		})
	}
}

// TestHostsOfRules has an entry of spec.tls without hosts.
func TestHostsOfRules(t *testing.T) {
	w := newWorld().service("a").certificate(t, "tls", "foo.com", "bar.com").
		ingress("i", rules(on("foo.com", "Prefix / a"), on("bar.com", "Prefix / a")), secured("tls")).
		ingress("j", rules(on("other.com", "Prefix / a")))
	result := Compile(&w.Input)
	wantFaults(t, result)
	for host, want := range map[string]string{"foo.com": "a", "bar.com": "a", "other.com": "refused"} {
		if got := ask(result, "https", host, "/"); got != want {
			t.Errorf("%s is answered by %s, want %s", host, got, want)
		}
	}
	w = newWorld().service("a").certificate(t, "tls", "foo.com").ingress("i", nil, defaulted("a"), secured("tls"))
	result = Compile(&w.Input)
	wantFaults(t, result)
	if got := ask(result, "https", "any.com", "/"); got != "a" {
		t.Errorf("a default backend with a certificate is answered by %s", got)
	}
}

func TestRedirect(t *testing.T) {
	w := newWorld().service("a").service("b").certificate(t, "tls", "foo.com", "bar.com").secret("users", map[string]string{"auth": "a:{SHA}x"}).
		ingress("i", rules(on("foo.com", "Prefix / a")), secured("tls", "foo.com"), annotated(AnnotationRedirect, "true"), annotated(AnnotationAuthSecret, "users")).
		ingress("j", rules(on("foo.com", "Prefix /b b"), on("bar.com", "Prefix / b")), secured("tls", "bar.com"), annotated(AnnotationRedirect, "false")).
		ingress("k", rules(on("no.com", "Prefix / a")), annotated(AnnotationRedirect, "true"))
	result := Compile(&w.Input)
	wantFaults(t, result, "k "+ReasonBadCertificate)
	for _, test := range [][4]string{
		{"http", "foo.com", "/", "redirect"}, {"https", "foo.com", "/", "a"}, {"http", "foo.com", "/b", "b"}, {"http", "bar.com", "/", "b"},
		{"http", "no.com", "/", "redirect"},
	} {
		if got := ask(result, test[0], test[1], test[2]); got != test[3] {
			t.Errorf("%s://%s%s is answered by %s, want %s", test[0], test[1], test[2], got, test[3])
		}
	}
	for name, route := range result.State.Routes {
		redirects := strings.HasSuffix(name, "/redirect")
		for _, rule := range route.Rules {
			if redirects && (rule.Auth != nil || rule.Filters[0].Redirect.Code != 308 || rule.Filters[0].Redirect.Scheme != "https") {
				t.Errorf("%s has the rule %+v", name, rule)
			}
		}
	}
}
