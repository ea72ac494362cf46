package ingress

import (
	"strings"
	"testing"

	netv1 "k8s.io/api/networking/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// thief makes an Ingress one of the namespace thief, which has the same Services.
func thief(i *netv1.Ingress) { i.Namespace = "thief" }

// TestOwners has an Ingress of the namespace shop, and a younger one of the namespace thief that
// wants its hosts.
func TestOwners(t *testing.T) {
	for name, test := range map[string]struct {
		stolen []netv1.IngressRule
		tls    []string
		faults []string
		served bool
	}{
		"a more specific path": {rules(on("www.example.com", "Exact / theirs", "Prefix /login theirs")), nil, []string{"stolen Conflict"}, false},
		"all paths":            {rules(on("www.example.com", "Prefix / theirs")), nil, []string{"stolen Conflict"}, false},
		"and a host of its own": {
			rules(on("www.example.com", "Exact / theirs"), on("thief.example.com", "Prefix / theirs")), nil, []string{"stolen Conflict"}, true,
		},
		"a wildcard":                {rules(on("*.example.com", "Exact / theirs", "Prefix /login theirs")), nil, nil, true},
		"all hosts":                 {rules(on("", "Exact / theirs", "Prefix /login theirs")), nil, nil, true},
		"its certificate":           {rules(on("thief.example.com", "Prefix / theirs")), []string{"www.example.com"}, []string{"stolen Conflict"}, true},
		"an answer to an authority": {rules(on("www.example.com", "Exact /.well-known/acme-challenge/x theirs")), nil, []string{"stolen Conflict"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld().service("ours").certificate(t, "tls", "www.example.com", "thief.example.com")
			w.services["thief/theirs"] = w.service("theirs").services["shop/theirs"]
			w.slices["thief/theirs"] = w.slices["shop/theirs"]
			w.secrets["thief/tls"] = w.secrets["shop/tls"]
			w.ingress("ours", rules(on("www.example.com", "Prefix /shop ours")), secured("tls", "www.example.com"))
			w.ingress("stolen", test.stolen, thief, func(i *netv1.Ingress) {
				if test.tls != nil {
					secured("tls", test.tls...)(i)
				}
			})
			run := Begin(&w.Input)
			owners := hosts.Decide(run.Claims(), nil)
			result := run.Finish(owners)
			wantFaults(t, result, test.faults...)
			if got := result.Served[w.Ingresses[1]]; got != test.served {
				t.Errorf("the Ingress is served: %t", got)
			}
			if !result.Served[w.Ingresses[0]] {
				t.Error("the older Ingress is not served")
			}
			result.Fronts = front.Partition(result.Fronts, result.State.Routes, owners)
			for _, scheme := range []string{"http", "https"} {
				for path, want := range map[string]string{"/": "404", "/login": "404", "/shop": "ours", "/.well-known/acme-challenge/x": "404"} {
					if got := ask(result, scheme, "www.example.com", path); got != want {
						t.Errorf("%s %s is answered by %s, want %s", scheme, path, got, want)
					}
				}
			}
			for _, l := range result.Fronts[0].Ports[1].Listeners {
				for _, certificate := range l.Certificates {
					if l.Hostname == "www.example.com" && !strings.HasPrefix(certificate, "Secret/shop/") {
						t.Errorf("clients see the certificate %s", certificate)
					}
				}
			}
		})
	}
}

// TestSharedHosts has two namespaces whose Ingresses have one host together, because hosts belong
// to nobody, or because the older one allows it.
func TestSharedHosts(t *testing.T) {
	for name, allows := range map[string]bool{"nobody's": false, "allowed": true} {
		w := newWorld().service("ours")
		w.services["thief/theirs"] = w.service("theirs").services["shop/theirs"]
		w.slices["thief/theirs"] = w.slices["shop/theirs"]
		w.ingress("ours", rules(on("www.example.com", "Prefix / ours")), func(i *netv1.Ingress) {
			if allows {
				annotated("gateway.kedge.dev/allow-namespaces", "blog, thief")(i)
			}
		})
		w.ingress("more", rules(on("www.example.com", "Prefix /login theirs")), thief)
		run := Begin(&w.Input)
		var owners *hosts.Owners
		if allows {
			owners = hosts.Decide(run.Claims(), nil)
		}
		result := run.Finish(owners)
		wantFaults(t, result)
		merged := map[string]bool{}
		for _, l := range front.Partition(result.Fronts, result.State.Routes, owners)[0].Ports[0].Listeners {
			for _, route := range l.Routes {
				merged[route] = true
			}
		}
		if len(merged) != 2 {
			t.Errorf("%s: the host has the routes %v", name, merged)
		}
	}
}
