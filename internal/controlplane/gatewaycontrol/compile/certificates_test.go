package compile

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestCertificates(t *testing.T) {
	tests := map[string]struct {
		refs, grant string
		reason      string
		programmed  bool
		served      []string
	}{
		"a Secret":               {refs: `[{name: certificate}]`, programmed: true, served: []string{"infra/certificate"}},
		"no Secret":              {refs: `[{name: missing}]`, reason: "InvalidCertificateRef"},
		"no reference":           {refs: `[]`, reason: "InvalidCertificateRef"},
		"another group":          {refs: `[{group: wrong.example, name: certificate}]`, reason: "InvalidCertificateRef"},
		"another kind":           {refs: `[{kind: WrongKind, name: certificate}]`, reason: "InvalidCertificateRef"},
		"malformed":              {refs: `[{name: malformed}]`, reason: "InvalidCertificateRef"},
		"empty":                  {refs: `[{name: empty}]`, reason: "InvalidCertificateRef"},
		"one of two":             {refs: `[{name: missing}, {name: certificate}]`, reason: "InvalidCertificateRef", programmed: true, served: []string{"infra/certificate"}},
		"twice":                  {refs: `[{name: certificate}, {name: certificate, kind: Secret, group: ""}]`, programmed: true, served: []string{"infra/certificate"}},
		"without a grant":        {refs: `[{name: certificate, namespace: other}]`, reason: "RefNotPermitted"},
		"missing and no grant":   {refs: `[{name: missing, namespace: other}]`, reason: "RefNotPermitted"},
		"grant for all":          {refs: `[{name: certificate, namespace: other}]`, grant: `{group: "", kind: Secret}`, programmed: true, served: []string{"other/certificate"}},
		"grant for one":          {refs: `[{name: certificate, namespace: other}]`, grant: `{group: "", kind: Secret, name: certificate}`, programmed: true, served: []string{"other/certificate"}},
		"grant for another one":  {refs: `[{name: certificate, namespace: other}]`, grant: `{group: "", kind: Secret, name: x}`, reason: "RefNotPermitted"},
		"grant for ConfigMaps":   {refs: `[{name: certificate, namespace: other}]`, grant: `{group: "", kind: ConfigMap}`, reason: "RefNotPermitted"},
		"a grant, but no Secret": {refs: `[{name: missing, namespace: other}]`, grant: `{group: "", kind: Secret}`, reason: "InvalidCertificateRef"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: `+test.refs+`}}`)
			if test.grant != "" {
				w.add(t, `
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [`+test.grant+`]`)
			}
			result := w.serve()
			wanted := []string{"g/https ResolvedRefs=True ResolvedRefs", "g/https kinds=HTTPRoute,GRPCRoute", "g/https Accepted=True Accepted"}
			if test.reason != "" {
				wanted[0] = "g/https ResolvedRefs=False " + test.reason
			}
			if test.programmed {
				wanted = append(wanted, "g/https Programmed=True Programmed", "g Programmed=True Programmed")
			} else {
				wanted = append(wanted, "g/https Programmed=False Invalid", "g Programmed=False Invalid", "g Accepted=False ListenersNotValid")
			}
			expect(t, result, wanted...)
			if served := slices.Sorted(mapKeys(result.State.Certificates)); !slices.Equal(served, test.served) {
				t.Errorf("nodes get the certificates %v", served)
			}
			// The caller looks at a Secret only if the reference is allowed.
			if looked := len(result.Secrets) > 0; looked != !strings.Contains(test.reason, "NotPermitted") && looked {
				t.Errorf("the Secrets to look at are %v", result.Secrets)
			}
		})
	}
}

// TestAwaited has a listener whose certificate kedge gets, or not.
func TestAwaited(t *testing.T) {
	const asks = `{gateway.kedge.dev/acme: "true"}`
	for name, test := range map[string]struct {
		annotations, listener string
		awaited               bool
	}{
		"a host":            {asks, `hostname: a.example.com, tls: {certificateRefs: [{name: missing}]}`, true},
		"nobody asks":       {`{}`, `hostname: a.example.com, tls: {certificateRefs: [{name: missing}]}`, false},
		"a wildcard":        {asks, `hostname: "*.example.com", tls: {certificateRefs: [{name: missing}]}`, false},
		"all hosts":         {asks, `tls: {certificateRefs: [{name: missing}]}`, false},
		"another namespace": {asks, `hostname: a.example.com, tls: {certificateRefs: [{name: missing, namespace: other}]}`, false},
		"another Secret":    {asks, `hostname: a.example.com, tls: {certificateRefs: [{name: malformed}]}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			result := newWorld(t, `
kind: Gateway
metadata: {name: g, annotations: `+test.annotations+`}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: https, port: 443, protocol: HTTPS, `+test.listener+`}`).serve()
			if !test.awaited {
				expect(t, result, "g Accepted=False ListenersNotValid")
				return
			}
			expect(t, result, "g Accepted=True ListenersNotValid", "g/https Accepted=True Accepted",
				"g/https ResolvedRefs=False Pending", "g/https Programmed=False Pending")
			if len(result.Fronts) != 1 || len(result.Fronts[0].Ports[0].Listeners) != 1 || len(result.Fronts[0].Ports[0].Listeners[0].Certificates) != 0 {
				t.Errorf("the fronts are %+v", result.Fronts)
			}
		})
	}
}

func mapKeys[V any](of map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range of {
			if !yield(key) {
				return
			}
		}
	}
}

func TestClientCertificate(t *testing.T) {
	tests := map[string]struct{ ref, reason string }{
		"a Secret":        {ref: `{name: certificate}`},
		"no Secret":       {ref: `{name: missing}`, reason: "InvalidClientCertificateRef"},
		"another group":   {ref: `{group: wrong.example, name: certificate}`, reason: "InvalidClientCertificateRef"},
		"another kind":    {ref: `{kind: WrongKind, name: certificate}`, reason: "InvalidClientCertificateRef"},
		"empty":           {ref: `{name: empty}`, reason: "InvalidClientCertificateRef"},
		"without a grant": {ref: `{name: certificate, namespace: other}`, reason: "RefNotPermitted"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: `+test.ref+`}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}`)
			result := w.serve()
			wanted := []string{"g Accepted=True Accepted", "g Programmed=True Programmed", "g ResolvedRefs=True ResolvedRefs"}
			name := "infra/certificate"
			if test.reason != "" {
				wanted[2], name = "g ResolvedRefs=False "+test.reason, ""
			}
			expect(t, result, wanted...)
			c := newCompiler(&w.in)
			c.gateways()
			c.decide()
			if got := c.clientCertificates[w.in.Gateways[0]]; got != name {
				t.Errorf("the certificate is %q", got)
			}
		})
	}
}

func TestClientValidation(t *testing.T) {
	tests := map[string]struct {
		// frontend is for port 443. There is another one for port 80.
		frontend string
		wanted   []string
		// authorities is how many authorities clients are checked with.
		authorities int
		insecure    bool
	}{
		"default": {
			frontend:    `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: authority}]}}}`,
			wanted:      []string{"g/https Programmed=True Programmed", "!g InsecureFrontendValidationMode", "g Accepted=True Accepted"},
			authorities: 1,
		},
		"of the port": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: missing}]}},
				perPort: [{port: 443, tls: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: authority}]}}}]}`,
			wanted:      []string{"g/https Programmed=True Programmed", "g Accepted=True Accepted"},
			authorities: 1,
		},
		"none at the port": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: missing}]}}, perPort: [{port: 443, tls: {}}]}`,
			wanted:   []string{"g/https Programmed=True Programmed", "g Accepted=True Accepted"},
		},
		"insecure": {
			frontend:    `{default: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{kind: ConfigMap, group: "", name: authority}]}}}`,
			wanted:      []string{"g/https Programmed=True Programmed", "g InsecureFrontendValidationMode=True ConfigurationChanged"},
			authorities: 1, insecure: true,
		},
		"insecure at another port": {
			frontend: `{default: {}, perPort: [{port: 8443, tls: {validation: {mode: AllowInsecureFallback, caCertificateRefs: []}}}]}`,
			wanted:   []string{"g InsecureFrontendValidationMode=True ConfigurationChanged"},
		},
		"no ConfigMap": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: missing}]}}}`,
			wanted:   refused("InvalidCACertificateRef"),
		},
		"no certificate": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: text}]}}}`,
			wanted:   refused("InvalidCACertificateRef"),
		},
		"another kind": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: Service, group: "", name: authority}]}}}`,
			wanted:   refused("InvalidCACertificateKind"),
		},
		"without a grant": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: authority, namespace: other}]}}}`,
			wanted:   refused("RefNotPermitted"),
		},
		"one of two": {
			frontend: `{default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: missing}, {kind: ConfigMap, group: "", name: authority}]}}}`,
			wanted: []string{
				"g Accepted=True ListenersNotValid", "g/https ResolvedRefs=False InvalidCACertificateRef",
				"g/https Accepted=True Accepted", "g/https Programmed=True Programmed",
			},
			authorities: 1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  tls: {frontend: `+strings.ReplaceAll(test.frontend, "\t", " ")+`}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: http, port: 80, protocol: HTTP}`)
			result := w.serve()
			expect(t, result, append(test.wanted, "g/http Accepted=True Accepted", "g/http ResolvedRefs=True ResolvedRefs", "g/http Programmed=True Programmed")...)
			for _, port := range result.Fronts[0].Ports {
				l := port.Listeners[0]
				if authorities := strings.Count(l.ClientAuthorities, "BEGIN CERTIFICATE"); port.Number == 443 && (authorities != test.authorities || l.AllowInsecureFallback != test.insecure) {
					t.Errorf("the listener has %d authorities, and insecure is %t", authorities, l.AllowInsecureFallback)
				}
			}
		})
	}
}

// refused is what a listener has that would let everybody in.
func refused(reason string) []string {
	return []string{
		"g Accepted=True ListenersNotValid", "g Programmed=True Programmed", "g/https ResolvedRefs=False " + reason,
		"g/https Accepted=False NoValidCACertificate", "g/https Programmed=False Invalid",
	}
}

// Nodes get the certificates of authorities, and not the private key that is beside them.
func TestParseAuthorities(t *testing.T) {
	chain, key := newCertificate(t)
	text, err := parseAuthorities("text\n" + string(chain) + string(key) + string(chain))
	if err != nil || strings.Count(text, "CERTIFICATE--") != 4 || strings.Contains(text, "KEY") || strings.Contains(text, "text") {
		t.Errorf("the authorities are %q, %v", text, err)
	}
	many := strings.Repeat(string(chain), maxAuthorities/len(chain)+1)
	for _, wrong := range []string{"", "text", many, string(key), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if _, err := parseAuthorities(wrong); err == nil {
			t.Errorf("%.100q has authorities", wrong)
		}
	}
}

// A Secret is read once, however many listeners refer to it.
func TestCheckedOnce(t *testing.T) {
	w := newWorld(t, "")
	read, secret := 0, w.in.Secret
	w.in.Secret = func(namespace, name string) *corev1.Secret {
		read++
		return secret(namespace, name)
	}
	c := newCompiler(&w.in)
	for range 3 {
		if _, wrong := c.certificate(referrer{"Gateway", "infra"}, &gwv1.SecretObjectReference{Name: "certificate"}, "Wrong"); wrong.is() {
			t.Fatal(wrong)
		}
	}
	if read != 1 {
		t.Errorf("the Secret was read %d times", read)
	}
}
