package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestFronts(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: one}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: tls, port: 443, protocol: TLS, hostname: b.example, tls: {mode: Passthrough}}
  - {name: quic, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: udp, port: 8443, protocol: UDP}
  - {name: broken, port: 9443, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}
---
kind: Gateway
metadata: {name: two, namespace: other}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: http, port: 80, protocol: HTTP}
---
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: kedge
  addresses: [{value: 192.0.2.7}]
  listeners:
  - {name: http, port: 80, protocol: HTTP}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: one}
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: a.example}`)
	var got []string
	for _, f := range w.compile().Fronts {
		for _, port := range f.Ports {
			line := fmt.Sprintf("%s %d/%s", f.Name, port.Number, port.Transport)
			if port.HTTP3 {
				line += " HTTP/3"
			}
			got = append(got, line)
			for _, l := range port.Listeners {
				got = append(got, strings.TrimSpace(fmt.Sprintf("- %s %s %s %s", l.Name, l.Protocol, l.Hostname, strings.Join(l.Certificates, ","))))
			}
		}
	}
	want := []string{
		"kube-system/kedge-gateway 80/tcp",
		"- infra/s/http http a.example",
		"- other/two/http http",
		"kube-system/kedge-gateway 443/tcp HTTP/3",
		"- infra/one/https https  infra/certificate,other/certificate",
		"- infra/one/tls tls-passthrough b.example",
		"- other/two/https https  other/certificate",
		"kube-system/kedge-gateway 443/udp HTTP/3",
		"- infra/one/https https  infra/certificate,other/certificate",
		"- other/two/https https  other/certificate",
		"kube-system/kedge-gateway 8443/tcp",
		"- infra/one/quic https  infra/certificate",
		"kube-system/kedge-gateway 8443/udp",
		"- infra/one/udp udp",
		"infra/own-kedge 80/tcp",
		"- infra/own/http http",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the fronts are\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestServiceName(t *testing.T) {
	long := strings.Repeat("a", 240)
	tests := map[string]string{
		"web":                    "web-kedge",
		"web.example":            "gateway-web-example-",
		"1st":                    "gateway-1st-",
		long:                     "gateway-aaa",
		long + "b":               "gateway-aaa",
		strings.Repeat("a", 57):  strings.Repeat("a", 57) + "-kedge",
		strings.Repeat("a.", 60): "gateway-a-a-",
	}
	seen := make(map[string]bool)
	for gateway, prefix := range tests {
		name := serviceName(gateway)
		if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, "-kedge") || seen[name] {
			t.Errorf("the Service of %s is %s", gateway, name)
		}
		if faults := validation.IsDNS1035Label(name); len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
		if faults := validation.IsValidLabelValue(shortName(gateway)); len(faults) > 0 && !strings.HasSuffix(gateway, ".") {
			t.Errorf("%s: %v", shortName(gateway), faults)
		}
		seen[name] = true
	}
}
