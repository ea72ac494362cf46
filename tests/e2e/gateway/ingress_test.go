package gateway

import (
	"fmt"
	"strings"
	"testing"
)

// TestIngress serves a host by name, with TLS, on both nodes.
func TestIngress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refuses(w.addresses()[0] + ":80")
	w.web("web")
	roots := w.certificate("web-tls", "web.example.com")
	w.Apply(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  tls: [{hosts: [web.example.com], secretName: web-tls}]
  rules:
  - host: web.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
`)
	for _, address := range w.addresses() {
		client := "client=" // The pod sees the gateway, and the header has the client.
		w.answers(question{address: address + ":80", url: "http://web.example.com/a"}, 200,
			client, "host=web.example.com", "path=/a", "forwarded="+w.client.Address.String(), "proto=http\n")
		w.answers(question{address: address + ":443", url: "https://web.example.com/b", roots: roots}, 200,
			"path=/b", "forwarded="+w.client.Address.String(), "proto=https\n")
		if got := w.answers(question{address: address + ":443", url: "https://web.example.com/", roots: roots, http2: true}, 200); got.proto != "HTTP/2.0" {
			t.Errorf("the gateway speaks %s, want HTTP/2.0", got.proto)
		} else if !strings.Contains(got.headers.Get("Alt-Svc"), `h3=":443"`) {
			t.Errorf("the answer has no HTTP/3: Alt-Svc is %q", got.headers.Get("Alt-Svc"))
		}
		w.answers(question{address: address + ":80", url: "http://other.example.com/"}, 404)
	}
	w.Eventually("the Ingress to have the nodes' addresses", func() error {
		got := w.Kubectl("get", "ingress", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		for _, address := range w.addresses() {
			if !strings.Contains(got, address) {
				return fmt.Errorf("it has %q", got)
			}
		}
		return nil
	})
	status := w.status()
	for _, word := range []string{"80/TCP", "443/TCP", "443/UDP", "kube-system/kedge-gateway", w.nodes[1].Name} {
		if !strings.Contains(status, word) {
			t.Errorf("kedge status shows no %q:\n%s", word, status)
		}
	}

	t.Log("annotations")
	w.Apply(`
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData:
  # openssl passwd -apr1 -salt saltsalt secret
  auth: "somebody:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: guarded
  annotations:
    ingress.kedge.dev/auth-secret: users
    ingress.kedge.dev/auth-realm: kitchen
    ingress.kedge.dev/max-body-size: 1Ki
    ingress.kedge.dev/request-timeout: 100ms
spec:
  rules:
  - host: guarded.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`)
	address := w.addresses()[0] + ":80"
	guarded := question{address: address, url: "http://guarded.example.com/"}
	if got := w.answers(guarded, 401); !strings.Contains(got.headers.Get("WWW-Authenticate"), "kitchen") {
		t.Errorf("WWW-Authenticate is %q", got.headers.Get("WWW-Authenticate"))
	}
	guarded.headers = map[string]string{"Authorization": "Basic c29tZWJvZHk6c2VjcmV0"}
	w.answers(guarded, 200)
	slow := guarded
	slow.url += "slow"
	w.answers(slow, 504)
	large := guarded
	large.method, large.body = "POST", strings.Repeat("x", 2000)
	w.answers(large, 413)
	w.Kubectl("delete", "secret", "users")
	w.answers(guarded, 503)

	w.Kubectl("annotate", "ingress", "web", "ingress.kedge.dev/redirect-https=true")
	if got := w.answers(question{address: address, url: "http://web.example.com/x?y"}, 308); got.headers.Get("Location") != "https://web.example.com/x?y" {
		t.Errorf("the redirect leads to %q", got.headers.Get("Location"))
	}

	t.Log("after the last Ingress the ports are free")
	w.Kubectl("delete", "ingress", "--all")
	for _, address := range w.addresses() {
		w.refuses(address + ":80")
		w.refuses(address + ":443")
	}
}

func (w *world) status() string {
	w.Helper()
	output, err := w.Server.Host.Kedge(w.Context(), "status", "--components").CombinedOutput()
	if err != nil {
		w.Logf("kedge status: %v", err)
	}
	return string(output)
}
