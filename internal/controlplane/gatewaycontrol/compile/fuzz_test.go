package compile

import (
	"encoding/json"
	"encoding/pem"
	"testing"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// FuzzAuthorities reads anything as certificates of authorities. What it accepts are
// certificates in PEM, and nothing else.
func FuzzAuthorities(f *testing.F) {
	for _, text := range []string{"", "text", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN X-----\n-----END X-----"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseAuthorities(text)
		if err != nil {
			return
		}
		for rest := []byte(found); len(rest) > 0; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
				t.Fatalf("%q has %q", text, found)
			}
		}
	})
}

// FuzzGateways compiles any Gateways with any listener sets. The listeners of a port can be
// told apart, those with TLS have a certificate, and those that must check clients do.
func FuzzGateways(f *testing.F) {
	for _, seed := range []string{
		`{"gateways":[{"spec":{"listeners":[{"name":"a","port":443,"protocol":"HTTPS","tls":{"certificateRefs":[{"name":"certificate"}]}}]}}]}`,
		`{"gateways":[{"spec":{"listeners":[{"name":"a","port":80,"protocol":"HTTP"},{"name":"b","port":80,"protocol":"TCP"}]}},{"spec":{"listeners":[{"name":"b","port":80,"protocol":"TCP"}]}}]}`,
		`{"gateways":[{"spec":{"tls":{"frontend":{"default":{"validation":{"caCertificateRefs":[{"kind":"ConfigMap","name":"authority"}]}}}},"listeners":[{"name":"a","port":443,"protocol":"HTTPS","tls":{"certificateRefs":[{"name":"certificate"}]}}]}}]}`,
		`{"gateways":[{"metadata":{"name":"g"},"spec":{"allowedListeners":{"namespaces":{"from":"All"}},"listeners":[{"name":"a","port":80,"protocol":"UDP"}]}}],
		  "sets":[{"spec":{"parentRef":{"name":"g"},"listeners":[{"name":"a","port":443,"protocol":"TLS","tls":{"mode":"Passthrough"}},{"name":"b","port":443,"protocol":"TLS","tls":{"certificateRefs":[{"name":"certificate"}]}}]}}]}`,
		`{"gateways":[{"spec":{"listeners":[{"name":"a","port":443,"protocol":"TLS","tls":{"mode":"Later"}}]}}]}`,
		`{"gateways":[{"spec":{"addresses":[{"value":"192.0.2.1"},{"type":"x"}],"infrastructure":{"labels":{"a":"b"}},"listeners":[{}]}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var objects struct {
			Gateways []gwv1.Gateway
			Sets     []gwv1.ListenerSet
		}
		if json.Unmarshal(data, &objects) != nil {
			return
		}
		w := newWorld(t, "")
		for i := range objects.Gateways {
			g := &objects.Gateways[i]
			g.Namespace, g.Spec.GatewayClassName = "infra", "kedge"
			w.in.Gateways = append(w.in.Gateways, g)
		}
		for i := range objects.Sets {
			objects.Sets[i].Namespace = "infra"
			w.in.ListenerSets = append(w.in.ListenerSets, &objects.Sets[i])
		}
		result := w.serve()
		for _, f := range result.Fronts {
			for _, port := range f.Ports {
				checkPort(t, result, port.Listeners)
			}
		}
		c := newCompiler(&w.in)
		c.gateways()
		c.decide()
		for _, l := range c.listeners {
			if l.usable && l.protocol == gwv1.HTTPSProtocolType && clientValidation(l.gateway, l.port) != nil && l.clientAuthorities == "" {
				t.Errorf("listener %s lets everybody in", l)
			}
		}
	})
}

func checkPort(t *testing.T, result *Result, listeners []front.Listener) {
	for i, l := range listeners {
		raw := l.Protocol == routing.RawTCP || l.Protocol == routing.RawUDP
		if raw && len(listeners) > 1 || (l.Protocol == routing.HTTP) != (listeners[0].Protocol == routing.HTTP) {
			t.Errorf("listeners of a port are %+v", listeners)
		}
		if (l.Protocol == routing.HTTPS || l.Protocol == routing.TLSTerminate) && len(l.Certificates) == 0 {
			t.Errorf("listener %s has no certificate", l.Name)
		}
		for _, name := range l.Certificates {
			if result.State.Certificates[name] == nil {
				t.Errorf("the nodes do not get the certificate %s of listener %s", name, l.Name)
			}
		}
		for _, other := range listeners[:i] {
			if other.Hostname == l.Hostname && (other.Protocol != l.Protocol || other.ClientAuthorities != l.ClientAuthorities) {
				t.Errorf("listeners %s and %s cannot be told apart", other.Name, l.Name)
			}
		}
	}
}
