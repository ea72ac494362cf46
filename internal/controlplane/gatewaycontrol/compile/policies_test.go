package compile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// securedRoute is a route to the ports https-1 and https-2 of the Service secured, by the
// Gateway g.
const securedRoute = oneGateway + `
kind: Service
metadata: {name: secured}
spec: {ports: [{name: https-1, port: 443, appProtocol: HTTPS}, {name: https-2, port: 8443}]}
---
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: secured, port: 443}]}, {backendRefs: [{name: secured, port: 8443}]}]}
---
`

// tlsOf writes the TLS of backends, as NAME JSON, without the authorities themselves.
func tlsOf(t *testing.T, result *Result) []string {
	t.Helper()
	var found []string
	for _, name := range backendNames(result) {
		tls := result.State.Backends[name].TLS
		if tls == nil {
			found = append(found, name)
			continue
		}
		copied := *tls
		if strings.Contains(copied.Authorities, "BEGIN CERTIFICATE") {
			copied.Authorities = "some"
		}
		text, err := json.Marshal(copied)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, name+" "+string(text))
	}
	return found
}

func TestPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		// policies are the specs of the policies p-0, p-1, …
		policies []string
		// wanted are lines for expectRoutes, and backends those of tlsOf.
		wanted, backends []string
	}{
		"for all ports": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: abc.example.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: authority}]}}`},
			wanted: []string{
				"BackendTLSPolicy/p-0 g Accepted=True Accepted", "BackendTLSPolicy/p-0 g ResolvedRefs=True ResolvedRefs", "BackendTLSPolicy/p-0 ancestors=1",
				"HTTPRoute/r g ResolvedRefs=True ResolvedRefs",
			},
			backends: []string{
				`infra/secured:443+tls {"serverName":"abc.example.com","authorities":"some"}`, `infra/secured:8443+tls {"serverName":"abc.example.com","authorities":"some"}`,
			},
		},
		"for one port, and for all": {
			policies: []string{
				`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: all.example.com, wellKnownCACertificates: System}}`,
				`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: one.example.com, wellKnownCACertificates: System}}`,
			},
			wanted: []string{"BackendTLSPolicy/p-0 g Accepted=True Accepted", "BackendTLSPolicy/p-1 g Accepted=True Accepted"},
			backends: []string{
				`infra/secured:443+tls {"serverName":"one.example.com"}`, `infra/secured:8443+tls {"serverName":"all.example.com"}`,
			},
		},
		"two for the same": {
			policies: []string{
				`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: older.example.com, wellKnownCACertificates: System}}`,
				`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: newer.example.com, wellKnownCACertificates: System}}`,
			},
			wanted:   []string{"BackendTLSPolicy/p-0 g Accepted=True Accepted", "BackendTLSPolicy/p-1 g Accepted=False Conflicted"},
			backends: []string{`infra/secured:443+tls {"serverName":"older.example.com"}`, `infra/secured:8443`},
		},
		"a conflict about one of several": {
			policies: []string{
				`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: older.example.com, wellKnownCACertificates: System}}`,
				`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}, {group: "", kind: Service, name: secured, sectionName: https-2}], validation: {hostname: newer.example.com, wellKnownCACertificates: System}}`,
			},
			wanted:   []string{"BackendTLSPolicy/p-1 g Accepted=True Accepted"},
			backends: []string{`infra/secured:443+tls {"serverName":"older.example.com"}`, `infra/secured:8443+tls {"serverName":"newer.example.com"}`},
		},
		"other names": {
			policies: []string{`
{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: sni.example.com, wellKnownCACertificates: System,
 subjectAltNames: [{type: URI, uri: "spiffe://abc.example.com/test"}, {type: Hostname, hostname: san.example.com}]}}`},
			backends: []string{
				`infra/secured:443+tls {"serverName":"sni.example.com","names":["san.example.com"],"uris":["spiffe://abc.example.com/test"]}`,
				`infra/secured:8443+tls {"serverName":"sni.example.com","names":["san.example.com"],"uris":["spiffe://abc.example.com/test"]}`,
			},
		},
		"an authority that is not there": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: ConfigMap, name: missing}]}}`},
			wanted: []string{
				"BackendTLSPolicy/p-0 g Accepted=False NoValidCACertificate", "BackendTLSPolicy/p-0 g ResolvedRefs=False InvalidCACertificateRef",
				"HTTPRoute/r g Accepted=True Accepted", "HTTPRoute/r g ResolvedRefs=True ResolvedRefs",
			},
		},
		"an authority that is none": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: ConfigMap, name: text}]}}`},
			wanted: []string{
				"BackendTLSPolicy/p-0 g Accepted=False NoValidCACertificate", "BackendTLSPolicy/p-0 g ResolvedRefs=False InvalidCACertificateRef",
			},
		},
		"an authority of another kind": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: invalid.io, kind: InvalidKind, name: invalid}]}}`},
			wanted: []string{
				"BackendTLSPolicy/p-0 g Accepted=False NoValidCACertificate", "BackendTLSPolicy/p-0 g ResolvedRefs=False InvalidKind",
			},
		},
		"one authority of two": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: ConfigMap, name: missing}, {group: "", kind: ConfigMap, name: authority}]}}`},
			wanted: []string{
				"BackendTLSPolicy/p-0 g Accepted=True Accepted", "BackendTLSPolicy/p-0 g ResolvedRefs=False InvalidCACertificateRef",
			},
			backends: []string{`infra/secured:443+tls {"serverName":"a","authorities":"some"}`, `infra/secured:8443`},
		},
		"an authority in a Secret": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: Secret, name: authority}]}}`},
			wanted:   []string{"BackendTLSPolicy/p-0 g Accepted=True Accepted"},
			backends: []string{`infra/secured:443+tls {"serverName":"a","authorities":"some"}`, `infra/secured:8443`},
		},
		"a Secret without an authority": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: Secret, name: certificate}]}}`},
			wanted:   []string{"BackendTLSPolicy/p-0 g ResolvedRefs=False InvalidCACertificateRef"},
		},
		"authorities that nobody knows": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, wellKnownCACertificates: example.com/ours}}`},
			wanted:   []string{"BackendTLSPolicy/p-0 g Accepted=False Invalid", "BackendTLSPolicy/p-0 g ResolvedRefs=True ResolvedRefs"},
		},
		"no authorities": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a}}`},
			wanted:   []string{"BackendTLSPolicy/p-0 g Accepted=False Invalid"},
		},
		"a port that is not there": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-3}], validation: {hostname: a, wellKnownCACertificates: System}}`},
			wanted:   []string{"BackendTLSPolicy/p-0 g Accepted=False TargetNotFound", "HTTPRoute/r g ResolvedRefs=False UnsupportedProtocol"},
			backends: []string{`infra/secured:8443`},
		},
		"a Service that no route has": {
			policies: []string{`{targetRefs: [{group: "", kind: Service, name: unused}], validation: {hostname: a, wellKnownCACertificates: System}}`},
			wanted:   []string{"!BackendTLSPolicy", "HTTPRoute/r g ResolvedRefs=False UnsupportedProtocol"},
			backends: []string{`infra/secured:8443`},
		},
		"something else than a Service": {
			policies: []string{`{targetRefs: [{group: example.com, kind: Service, name: secured}], validation: {hostname: a, wellKnownCACertificates: System}}`},
			wanted:   []string{"!BackendTLSPolicy"},
			backends: []string{`infra/secured:8443`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			manifests := securedRoute
			for i, spec := range test.policies {
				manifests += "kind: BackendTLSPolicy\nmetadata: {name: p-" + string(rune('0'+i)) + "}\nspec: " + strings.TrimSpace(spec) + "\n---\n"
			}
			w := newWorld(t, manifests)
			authority := w.configMaps[nameOf("infra", "authority")].Data[authorityKey]
			w.add(t, "kind: Secret\nmetadata: {name: authority}\nstringData: {}\n")
			w.secrets[nameOf("infra", "authority")].Data = map[string][]byte{authorityKey: []byte(authority)}
			result := w.compile()
			expectRoutes(t, result, test.wanted...)
			if got := tlsOf(t, result); strings.Join(got, "\n") != strings.Join(test.backends, "\n") {
				t.Errorf("the backends are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(test.backends, "\n"))
			}
		})
	}
}

// A private key beside the certificate of an authority does not go to the nodes, and a Secret
// that is asked for is told, whether it is there or not.
func TestPolicyAuthoritiesAreOnlyCertificates(t *testing.T) {
	w := newWorld(t, securedRoute+`
kind: BackendTLSPolicy
metadata: {name: p}
spec: {targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: Secret, name: mixed}, {group: "", kind: Secret, name: missing}]}}
---
kind: Secret
metadata: {name: mixed}`)
	chain, key := newCertificate(t)
	w.secrets[nameOf("infra", "mixed")].Data = map[string][]byte{authorityKey: append(key, chain...)}
	result := w.compile()
	if text := result.State.Backends["infra/secured:443+tls"].TLS.Authorities; strings.Contains(text, "PRIVATE") || text != string(chain) {
		t.Errorf("the authorities are %s", text)
	}
	if !result.Secrets[nameOf("infra", "mixed")] || !result.Secrets[nameOf("infra", "missing")] {
		t.Errorf("the Secrets are %v", result.Secrets)
	}
}

// Gateways with certificates for backends have variants of a route, and only those that have
// backends with TLS.
func TestClientCertificates(t *testing.T) {
	const secured = `
kind: Gateway
metadata: {name: shows}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: {name: certificate}}}
  listeners: [{name: http, port: 8080, protocol: HTTP}]
---
kind: HTTPRoute
metadata: {name: both}
spec: {parentRefs: [{name: g}, {name: shows}], rules: [{backendRefs: [{name: secured, port: 443}, {name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: plain}
spec: {parentRefs: [{name: g}, {name: shows}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: BackendTLSPolicy
metadata: {name: p}
spec: {targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: a, wellKnownCACertificates: System}}
`
	result := newWorld(t, services+securedRoute+secured).compile()
	expectRoutes(t, result,
		"infra/g/http routes=HTTPRoute/infra/both,HTTPRoute/infra/plain,HTTPRoute/infra/r",
		"infra/shows/http routes=HTTPRoute/infra/both+certificate+infra/certificate,HTTPRoute/infra/plain",
		"BackendTLSPolicy/p g Accepted=True Accepted", "BackendTLSPolicy/p shows Accepted=True Accepted")
	backend := result.State.Backends["infra/secured:443+tls+infra/certificate"]
	if backend == nil || backend.TLS.ClientCertificate != "infra/certificate" || backend.Name != "infra/secured:443" {
		t.Errorf("the backend is %+v", backend)
	}
	if result.State.Certificates["infra/certificate"] == nil {
		t.Error("the nodes do not have the certificate")
	}
	if name := result.State.Routes["HTTPRoute/infra/both+certificate+infra/certificate"].Name; name != "HTTPRoute/infra/both" {
		t.Errorf("the access log calls the route %q", name)
	}
}

// A route of another namespace gets the certificate of a Gateway only by a listener of this
// Gateway that lets the route in. Neither another Gateway of its own nor the same backend, which a
// grant gives to it, has the certificate.
func TestClientCertificateOfAnotherGateway(t *testing.T) {
	const manifests = `
kind: Service
metadata: {name: secured}
spec: {ports: [{name: https-1, port: 443}]}
---
kind: Gateway
metadata: {name: shows}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: {name: certificate}}}
  listeners: [{name: http, port: 8080, protocol: HTTP, hostname: a.example.com, allowedRoutes: {namespaces: {from: %s}}}]
---
kind: HTTPRoute
metadata: {name: honest}
spec: {parentRefs: [{name: shows}], rules: [{backendRefs: [{name: secured, port: 443}]}]}
---
kind: Gateway
metadata: {name: own, namespace: evil}
spec: {gatewayClassName: kedge, listeners: [{name: http, port: 8080, protocol: HTTP, hostname: b.example.com}]}
---
kind: HTTPRoute
metadata: {name: thief, namespace: evil}
spec: {parentRefs: [{name: shows, namespace: infra}, {name: own}], rules: [{backendRefs: [{name: secured, namespace: infra, port: 443}]}]}
---
kind: ReferenceGrant
metadata: {name: grant}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: evil}], to: [{group: "", kind: Service}]}
---
kind: BackendTLSPolicy
metadata: {name: p}
spec: {targetRefs: [{group: "", kind: Service, name: secured, sectionName: https-1}], validation: {hostname: a, wellKnownCACertificates: System}}
`
	for from, want := range map[string]string{
		"Same": "infra/shows/http routes=HTTPRoute/infra/honest+certificate+infra/certificate",
		"All":  "infra/shows/http routes=HTTPRoute/evil/thief+certificate+infra/certificate,HTTPRoute/infra/honest+certificate+infra/certificate",
	} {
		result := newWorld(t, services+fmt.Sprintf(manifests, from)).compile()
		expectRoutes(t, result, want, "evil/own/http routes=HTTPRoute/evil/thief")
		for name, shown := range map[string]string{"infra/secured:443+tls": "", "infra/secured:443+tls+infra/certificate": "infra/certificate"} {
			backend := result.State.Backends[name]
			if backend == nil || backend.TLS.ClientCertificate != shown {
				t.Errorf("from %s: the backend %s is %+v", from, name, backend)
			}
		}
		if got := result.State.Routes["HTTPRoute/evil/thief"].Rules[0].Targets[0].Backend; got != "infra/secured:443+tls" {
			t.Errorf("from %s: the thief's own Gateway sends requests to %s", from, got)
		}
	}
}

// A TLSRoute has the policy where the Gateway ends the TLS of the client, and none where it
// goes on to the backend.
func TestPolicyOfTLSRoute(t *testing.T) {
	result := newWorld(t, services+`
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: ends, port: 443, protocol: TLS, hostname: ends.example.com, tls: {mode: Terminate, certificateRefs: [{name: certificate}]}}
  - {name: passes, port: 8443, protocol: TLS, tls: {mode: Passthrough}}
---
kind: TLSRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], hostnames: ["*.example.com"], rules: [{backendRefs: [{name: a, port: 8080, weight: 3}]}]}
---
kind: BackendTLSPolicy
metadata: {name: p}
spec: {targetRefs: [{group: "", kind: Service, name: a}], validation: {hostname: a, wellKnownCACertificates: System}}
`).compile()
	expectRoutes(t, result,
		"infra/g/ends routes=TLSRoute/infra/r", "infra/g/passes routes=TLSRoute/infra/r+passthrough",
		"BackendTLSPolicy/p g Accepted=True Accepted", "g/ends attached=1", "g/passes attached=1", "TLSRoute/infra/r+passthrough hostnames=*.example.com")
	for name, want := range map[string]string{
		"TLSRoute/infra/r":             `{"targets":[{"backend":"infra/a:8080+tls","weight":3}]}`,
		"TLSRoute/infra/r+passthrough": `{"targets":[{"backend":"infra/a:8080","weight":3}]}`,
	} {
		if text, _ := json.Marshal(result.State.Routes[name].Stream); string(text) != want {
			t.Errorf("%s is %s, want %s", name, text, want)
		}
	}
}

// What other controllers say about a policy stays. What kedge said of a Gateway that is no
// ancestor any more goes away.
func TestPolicyStatusKeepsOthers(t *testing.T) {
	w := newWorld(t, securedRoute+`
kind: BackendTLSPolicy
metadata: {name: p, generation: 4}
spec: {targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, wellKnownCACertificates: System}}`)
	policy := w.in.Policies[0]
	policy.Status.Ancestors = []gwv1.PolicyAncestorStatus{
		{AncestorRef: gwv1.ParentReference{Name: "gone"}, ControllerName: Controller},
		{AncestorRef: gwv1.ParentReference{Name: "theirs"}, ControllerName: "example.com/other", Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Fine"}}},
	}
	result := w.compile()
	expectRoutes(t, result, "BackendTLSPolicy/p ancestors=2", "BackendTLSPolicy/p theirs Accepted=True Fine", "BackendTLSPolicy/p g Accepted=True Accepted")
	if got := result.Policies[policy].Ancestors[1].Conditions[0].ObservedGeneration; got != 4 {
		t.Errorf("the generation is %d", got)
	}
	w.in.HTTPRoutes = nil
	expectRoutes(t, w.compile(), "BackendTLSPolicy/p ancestors=1", "BackendTLSPolicy/p theirs Accepted=True Fine")
}

// An option that kedge does not know is not passed over in silence.
func TestPolicyOptions(t *testing.T) {
	w := newWorld(t, securedRoute+`
kind: BackendTLSPolicy
metadata: {name: p}
spec: {targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, wellKnownCACertificates: System}, options: {example.com/a: b}}`)
	if message := w.compile().Policies[w.in.Policies[0]].Ancestors[0].Conditions[0].Message; !strings.Contains(message, "spec.options is ignored") {
		t.Errorf("the message is %q", message)
	}
}
