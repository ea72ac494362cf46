package gateway

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/load"
)

// TestUpdates changes pods, certificates, routes and a node under steady load. No request may fail.
func TestUpdates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.web("web")
	authority, roots := newCertificates(t)
	w.Apply(authority.secret(t, "web-tls"))
	w.Apply(pool)
	w.Apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: kedge
  infrastructure: {annotations: {kedge.dev/pool: lan}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web-tls}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: own}]
  hostnames: [web.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`)
	w.programmed("own")
	address := w.Kubectl("get", "gateway", "own", "-o", "jsonpath={.status.addresses[0].value}")
	plain, secure := address+":80", address+":443"
	w.answers(question{address: plain, url: "http://web.example.com/"}, 200)
	w.answers(question{address: secure, url: "https://web.example.com/", roots: roots}, 200)
	start := func() []*load.Load {
		base := load.Config{Dial: w.client.DialContext, Address: plain, URL: "http://web.example.com/", Roots: roots, Workers: 3, Pause: 20 * time.Millisecond}
		fresh, tls, h2 := base, base, base
		fresh.Fresh = true
		tls.Address, tls.URL, tls.Fresh = secure, "https://web.example.com/", true
		h2.Address, h2.URL, h2.HTTP2 = secure, "https://web.example.com/", true
		var loads []*load.Load
		for _, cfg := range []load.Config{base, fresh, tls, h2} {
			loads = append(loads, load.Start(t, cfg))
		}
		return loads
	}
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"a rolling update", func() {
			w.Kubectl("rollout", "restart", "deployment/web")
			w.Kubectl("rollout", "status", "deployment/web", "--timeout="+cluster.Patience.String())
		}},
		{"changed certificates", func() {
			for range 5 {
				w.Apply(authority.secret(t, "web-tls"))
				time.Sleep(500 * time.Millisecond) // for the load
			}
		}},
		{"changed routes", func() {
			for i := range 10 {
				w.Kubectl("annotate", "--overwrite", "httproute/web", fmt.Sprint("example.com/try=", i))
				w.Kubectl("patch", "httproute/web", "--type=json", "-p",
					fmt.Sprintf(`[{"op":"replace","path":"/spec/hostnames","value":["web.example.com","web-%d.example.com"]}]`, i))
			}
		}},
		{"a node that restarts kedge", func() {
			w.agent.Restart()
			w.wantWell(w.agent.Host)
		}},
		{"the other node that restarts kedge", func() {
			w.Server.Restart()
			w.wantWell(w.Server.Host)
		}},
	} {
		loads := start()
		time.Sleep(time.Second) // for the load
		change.do()
		time.Sleep(time.Second)
		for i, l := range loads {
			l.Stop(fmt.Sprintf("%s, %s", change.what, []string{"HTTP/1.1", "new connections", "new connections with TLS", "HTTP/2"}[i]))
		}
	}
}

// wantWell waits until `kedge status` on a host says that everything is ready.
func (w *world) wantWell(host *harness.Host) {
	w.Helper()
	w.Eventually("kedge to be ready on "+host.Name, func() error {
		if output, err := host.Kedge(w.Context(), "status").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
}

// certificates makes certificates of one authority.
type certificates struct{ certificate, key []byte }

func newCertificates(t *testing.T) (*certificates, *x509.CertPool) {
	t.Helper()
	certificate, key := cluster.Certificate(t, "web.example.com")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &certificates{certificate, key}, roots
}

// secret returns a Secret with a new certificate for web.example.com.
func (c *certificates) secret(t *testing.T, name string) string {
	t.Helper()
	certificate, key := cluster.Signed(t, c.certificate, c.key, "web.example.com")
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: %s}
data: {tls.crt: %s, tls.key: %s}
`, name, base64.StdEncoding.EncodeToString(certificate), base64.StdEncoding.EncodeToString(key))
}
