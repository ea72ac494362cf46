package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

const pool = `
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: lan}
spec:
  addresses: [172.31.0.200-172.31.0.209]
`

// TestGateway has a Gateway that shares the nodes' addresses, one with an address of a pool, and
// connections that are no HTTP.
func TestGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.web("web")
	roots := w.certificate("web-tls", "web.example.com")
	w.Apply(pool)
	w.Apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: shared}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: web.example.com, tls: {certificateRefs: [{name: web-tls}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: kedge
  infrastructure: {annotations: {kedge.dev/pool: lan}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: pass, port: 443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: raw, port: 9000, protocol: TCP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: shared}, {name: own, sectionName: http}]
  hostnames: [web.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}, statusCode: 301}}]
  - filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-by, value: route}]}}]
    backendRefs: [{name: web, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: raw}
spec:
  parentRefs: [{name: own, sectionName: raw}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`)
	w.programmed("shared")
	w.programmed("own")
	for _, address := range w.addresses() {
		if got := w.answers(question{address: address + ":80", url: "http://web.example.com/"}, 200, "hostname=web"); got.headers.Get("X-By") != "route" {
			t.Errorf("the answer has the headers %v", got.headers)
		}
		w.answers(question{address: address + ":443", url: "https://web.example.com/", roots: roots, http2: true}, 200, "proto=https\n")
		if got := w.answers(question{address: address + ":80", url: "http://web.example.com/old/x"}, 301); got.headers.Get("Location") != "http://web.example.com/new/x" {
			t.Errorf("the redirect leads to %q", got.headers.Get("Location"))
		}
	}
	own := w.Kubectl("get", "gateway", "own", "-o", "jsonpath={.status.addresses[0].value}")
	if own != "172.31.0.200" {
		t.Fatalf("the Gateway has the address %q", own)
	}
	w.answers(question{address: own + ":80", url: "http://web.example.com/"}, 200, "forwarded="+w.client.Address.String())
	w.answers(question{address: own + ":9000", url: "http://anything.example.com/"}, 200, "host=anything.example.com")
	// An unknown name is refused, and not answered by another Gateway's certificate.
	conn, err := w.client.DialContext(w.Context(), "tcp", own+":443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if err := tls.Client(conn, &tls.Config{ServerName: "web.example.com", InsecureSkipVerify: true}).Handshake(); err == nil {
		t.Error("a listener for passthrough without routes shows a certificate")
	}

	t.Log("WebSocket")
	ws, err := w.client.DialContext(w.Context(), "tcp", w.addresses()[0]+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	_ = ws.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprint(ws, "GET /upgrade HTTP/1.1\r\nHost: web.example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
	got, want := make([]byte, 512), "101 Switching Protocols"
	n, err := ws.Read(got)
	if err != nil || !strings.Contains(string(got[:n]), want) {
		t.Fatalf("an upgrade is answered with %q, %v", got[:n], err)
	}
	rest := got[:n]
	for !bytes.Contains(rest, []byte("hello")) {
		n, err := ws.Read(got)
		if err != nil {
			t.Fatalf("after the upgrade: %v: %q", err, rest)
		}
		rest = append(rest, got[:n]...)
	}
	_, _ = io.WriteString(ws, "bye")
}

// programmed waits until a Gateway is.
func (w *world) programmed(name string) {
	w.Helper()
	w.Kubectl("wait", "gateway/"+name, "--for=condition=Programmed", "--timeout=2m")
}
