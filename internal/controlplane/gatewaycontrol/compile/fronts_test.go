package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
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

// TestKeptPorts has listeners that lose their certificate. The ports that the Service has stay.
func TestKeptPorts(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: [{value: 192.0.2.7}]
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: never, port: 444, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}
  - {name: http, port: 80, protocol: HTTP}`)
	ports := func(result *Result) (lines []string) {
		for _, port := range result.Fronts[0].Ports {
			lines = append(lines, fmt.Sprintf("%d/%s %d", port.Number, port.Transport, len(port.Listeners)))
		}
		return lines
	}
	if got := ports(w.serve()); !slices.Equal(got, []string{"80/tcp 1", "443/tcp 1", "443/udp 1"}) {
		t.Errorf("the ports are %v", got)
	}
	secret := w.secrets[nameOf("infra", "certificate")]
	delete(w.secrets, nameOf("infra", "certificate"))
	if got := ports(w.compile()); !slices.Equal(got, []string{"80/tcp 1", "443/tcp 0", "443/udp 0"}) {
		t.Errorf("without the certificate the ports are %v", got)
	}
	w.in.Gateways[0].Spec.Listeners = w.in.Gateways[0].Spec.Listeners[:2]
	if got := ports(w.compile()); !slices.Equal(got, []string{"443/tcp 0", "443/udp 0"}) {
		t.Errorf("with nothing to serve the ports are %v", got)
	}
	w.secrets[nameOf("infra", "certificate")] = secret
	if got := ports(w.compile()); !slices.Equal(got, []string{"443/tcp 1", "443/udp 1"}) {
		t.Errorf("with the certificate the ports are %v", got)
	}
}

// TestMaxPorts has Gateways that want more ports than there may be.
func TestMaxPorts(t *testing.T) {
	gateway := func(name string, addresses string, first, count int) string {
		text := fmt.Sprintf("kind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: kedge\n  addresses: [%s]\n"+
			"  allowedListeners: {namespaces: {from: Same}}\n  listeners:\n", name, addresses)
		for i := range count {
			text += fmt.Sprintf("  - {name: l%d, port: %d, protocol: HTTP}\n", i, first+i)
		}
		return text + "---\n"
	}
	set := "kind: ListenerSet\nmetadata: {name: s}\nspec:\n  parentRef: {name: own}\n  listeners:\n  - {name: a, port: 1, protocol: HTTP}\n  - {name: b, port: 5001, protocol: HTTP, hostname: b.example}\n"
	w := newWorld(t, gateway("old", "", 1000, 40)+gateway("young", "", 1020, 60)+gateway("own", "{value: 192.0.2.7}", 5000, 64)+set)
	result := w.serve()
	count := map[string]int{}
	for _, f := range result.Fronts {
		count[f.Name.Name] = len(f.Ports)
	}
	if count[front.Shared.Name] != maxPorts || count["own-kedge"] != maxPorts {
		t.Errorf("the fronts have %v ports", count)
	}
	for object, status := range result.Gateways {
		for i, l := range status.Listeners {
			want := "True Accepted"
			if object.Name == "young" && i >= 44 {
				want = "False PortUnavailable"
			}
			condition := meta.FindStatusCondition(l.Conditions, "Accepted")
			if got := string(condition.Status) + " " + condition.Reason; got != want {
				t.Errorf("listener %s of %s is accepted: %s, want %s", l.Name, object.Name, got, want)
			}
			if want != "True Accepted" && !strings.Contains(condition.Message, "spec.addresses") {
				t.Errorf("the message is %q", condition.Message)
			}
		}
	}
	for _, status := range result.ListenerSets {
		if a, b := meta.IsStatusConditionTrue(status.Listeners[0].Conditions, "Accepted"), meta.IsStatusConditionTrue(status.Listeners[1].Conditions, "Accepted"); a || !b {
			t.Errorf("listeners of the set are accepted: %t, %t", a, b)
		}
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
