package attacks

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/testutil"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// front has what a stranger attacks at the gateway. Clients of secure.example.com need a certificate,
// internal.example.com has no route, app.example.com asks for a password below /admin, and the wildcard
// of wild.example.com shares its port with a listener of TLS.
const front = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: %q, args: [serve, "8080"], readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: secure}
spec:
  gatewayClassName: kedge
  tls: {frontend: {default: {validation: {caCertificateRefs: [{kind: ConfigMap, group: "", name: clients}]}}}}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: secure.example.com, tls: {certificateRefs: [{name: gateway-tls}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: public}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: gateway-tls}]}}
  - {name: wild, port: 443, protocol: HTTPS, hostname: "*.wild.example.com", tls: {certificateRefs: [{name: gateway-tls}]}}
  - {name: pass, port: 443, protocol: TLS, hostname: pass.wild.example.com, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: secure}
spec:
  parentRefs: [{name: secure}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: public}
spec:
  parentRefs: [{name: public, sectionName: http}, {name: public, sectionName: https}]
  hostnames: [public.example.com]
  rules:
  - filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: a}]}}]
    backendRefs: [{name: web, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: wild}
spec:
  parentRefs: [{name: public, sectionName: wild}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: pass}
spec:
  parentRefs: [{name: public, sectionName: pass}]
  hostnames: [pass.wild.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData: {auth: "somebody:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: admin, annotations: {ingress.kedge.dev/auth-secret: users}}
spec:
  rules:
  - host: app.example.com
    http: {paths: [{path: /admin, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: app}
spec:
  rules:
  - host: app.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
  - host: free.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

// stranger is a host outside of the cluster, with no rights, that connects to the gateway.
type stranger struct {
	*cluster.Cluster
	host *harness.Host
	// known is a certificate that secure.example.com knows. Only honest clients have it.
	known tls.Certificate
}

// newStranger makes a cluster with the front, and a host outside.
func newStranger(t *testing.T) *stranger {
	t.Helper()
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := &stranger{Cluster: cluster.Start(t, network), host: network.NewHost(t, "stranger-1")}
	certificate, key := cluster.Certificate(t, "gateway.example.com")
	authority, authorityKey := cluster.Certificate(t, "clients")
	var err error
	if s.known, err = tls.X509KeyPair(cluster.Signed(t, authority, authorityKey, "client")); err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	s.Apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: gateway-tls}\ndata: {tls.crt: %s, tls.key: %s}\n", encode(certificate), encode(key)))
	s.Apply(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: clients}\nbinaryData: {ca.crt: %s}\n", encode(authority)))
	s.Apply(fmt.Sprintf(front, image.TestserverName))
	s.Kubectl("rollout", "status", "deployment/web", "--timeout="+cluster.Patience.String())
	for _, gateway := range []string{"secure", "public"} {
		s.Kubectl("wait", "gateway/"+gateway, "--for=condition=Programmed", "--timeout=2m")
	}
	for host, port := range map[string]string{"public.example.com": "80", "app.example.com": "80", "free.example.com": "80"} {
		s.Eventually(host+" to be served", func() error {
			if status, body, err := s.plain(host, "/"); err != nil || status != http.StatusOK {
				return fmt.Errorf("port %s answers %d %s, %v", port, status, body, err)
			}
			return nil
		})
	}
	return s
}

// dial connects to a port of the gateway.
func (s *stranger) dial(port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	conn, err := s.host.DialContext(ctx, "tcp", net.JoinHostPort(s.Server.Host.Address.String(), port))
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(90 * time.Second))
	}
	return conn, err
}

// secured shakes hands with a server name.
func (s *stranger) secured(serverName, protocol string, certificates ...tls.Certificate) (*tls.Conn, error) {
	conn, err := s.dial("443")
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{ServerName: serverName, InsecureSkipVerify: true, NextProtos: []string{protocol}, Certificates: certificates})
	if err := secure.HandshakeContext(s.Context()); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// ask sends bytes and returns the status and the body of the answer.
func ask(conn net.Conn, request string) (int, string, error) {
	if _, err := io.WriteString(conn, request); err != nil {
		return 0, "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// get is a request for a path of a host.
func get(host, path string, headers ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + strings.Join(append(headers, "\r\n"), "\r\n")
}

// plain asks without TLS.
func (s *stranger) plain(host, path string, headers ...string) (int, string, error) {
	conn, err := s.dial("80")
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	return ask(conn, get(host, path, headers...))
}

// http2 sends a request of HTTP/2 with headers that no client library sends, and returns the status and
// the body.
func (s *stranger) http2(conn net.Conn, authority string, headers ...string) (status int, body string) {
	s.Helper()
	status, body, err := testutil.RawHTTP2(conn, append([]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", authority}, headers...)...)
	if err != nil {
		s.Fatalf("HTTP/2 to %s: %v", authority, err)
	}
	return status, body
}

// openssl asks for a host after a handshake with a server name, and returns what OpenSSL prints. Go's
// client sends no server name that ends with a dot.
func (s *stranger) openssl(serverName, host string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	cmd := s.host.Command(ctx, "openssl", "s_client", "-quiet", "-connect", net.JoinHostPort(s.Server.Host.Address.String(), "443"), "-servername", serverName)
	cmd.Stdin = strings.NewReader(get(host, "/"))
	output, err := cmd.CombinedOutput()
	s.Logf("%q: %v", serverName, err)
	return string(output)
}

// TestGatewayNames has a stranger without a certificate who wants to get at a host whose clients need
// one, by server names that only look like others.
func TestGatewayNames(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	harness.Need(t, "openssl")
	label := strings.Repeat("a", 63)
	for serverName, isName := range map[string]bool{
		"secure.example.com:443": false, ".secure.example.com": false, "secure..example.com": false, strings.Repeat("a.", 120) + "secure.example.com": false,
		strings.Join([]string{label, label, label, label[:43], "secure.example.com"}, "."): false, // a byte too long, and no label is
		"SECURE.example.com": true, "public.example.com": true, "": true,
	} {
		for _, protocol := range []string{"http/1.1", "h2"} {
			conn, err := s.secured(serverName, protocol)
			if (err == nil) != isName {
				t.Errorf("a handshake of %s with the name %q: %v", protocol, serverName, err)
			}
			if err != nil {
				continue
			}
			status := 0
			if protocol == "h2" && !strings.EqualFold(serverName, "secure.example.com") {
				status, _ = s.http2(conn, "secure.example.com")
			} else if code, _, err := ask(conn, get("secure.example.com", "/")); err == nil {
				status = code
			}
			if status != http.StatusMisdirectedRequest && status != 0 {
				t.Errorf("without a certificate, %s on a connection for %q gets %d", protocol, serverName, status)
			}
			conn.Close()
		}
	}
	for _, serverName := range []string{"secure.example.com.", "SECURE.example.com.", "secure.example.com.."} {
		if output := s.openssl(serverName, "secure.example.com"); strings.Contains(output, "HTTP/1.1 200") || strings.Contains(output, "hostname=") {
			t.Errorf("without a certificate, a connection for %q gets %s", serverName, output)
		}
	}
	// A connection for a wildcard of HTTPS does not carry requests for a listener of TLS.
	conn, err := s.secured("a.wild.example.com", "h2")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, body := s.http2(conn, "pass.wild.example.com"); status != http.StatusMisdirectedRequest {
		t.Errorf("the host of a listener of TLS gets %d %s from the wildcard of HTTPS", status, body)
	}
	// Honest clients are served.
	if output := s.openssl("x.example.com", "public.example.com"); !strings.Contains(output, "hostname=web") {
		t.Errorf("an honest client that uses OpenSSL gets %s", output)
	}
	for serverName, host := range map[string]string{"secure.example.com": "secure.example.com", "Secure.example.com": "secure.example.com:443", "x.example.com": "public.example.com", "a.wild.example.com": "b.wild.example.com"} {
		conn, err := s.secured(serverName, "http/1.1", s.known)
		if err != nil {
			t.Errorf("an honest client cannot connect to %s: %v", serverName, err)
			continue
		}
		if status, body, err := ask(conn, get(host, "/")); status != http.StatusOK {
			t.Errorf("an honest client asks %s and gets %d %s, %v", host, status, body, err)
		}
		conn.Close()
	}
}

// TestGatewayRequests has a stranger who writes requests that the gateway and the app read in different
// ways: a second host, and a path that is encoded twice.
func TestGatewayRequests(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	plain, err := s.dial("80")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	secure, err := s.secured("public.example.com", "h2")
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	for name, conn := range map[string]net.Conn{"without TLS": plain, "with TLS": secure} {
		if status, body := s.http2(conn, "public.example.com", "host", "internal.example.com"); status != http.StatusOK || !strings.Contains(body, "host=public.example.com\n") {
			t.Errorf("a Host header beside the :authority, %s: %d %s", name, status, body)
		}
	}
	over1, err := s.secured("public.example.com", "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	defer over1.Close()
	absolute := strings.Replace(get("internal.example.com", "/"), "GET /", "GET https://public.example.com/", 1)
	if status, body, err := ask(over1, absolute); status != http.StatusOK || !strings.Contains(body, "host=public.example.com\n") {
		t.Errorf("a Host header beside an absolute target, with TLS: %d %s, %v", status, body, err)
	}
	for _, path := range []string{"/%2Fadmin/", "/x/%2e%2e/admin", "/%2e/admin", "/%5Cadmin", "/%252Fadmin", "/admin;x/", "/%00/admin"} {
		if status, body, err := s.plain("app.example.com", path); status != http.StatusBadRequest {
			t.Errorf("without a password, %s gets %d %s, %v", path, status, body, err)
		}
	}
	// Honest clients are served, and hosts without protected paths get every path as it is.
	for _, test := range []struct {
		host, path, header string
		want               int
	}{
		{"app.example.com", "/admin/", "Authorization: Basic c29tZWJvZHk6c2VjcmV0", http.StatusOK},
		{"app.example.com", "/admin/", "X-A: a", http.StatusUnauthorized},
		{"app.example.com", "/a%20b", "X-A: a", http.StatusOK},
		{"free.example.com", "/@scope%2Fname", "X-A: a", http.StatusOK},
	} {
		if status, body, err := s.plain(test.host, test.path, test.header); status != test.want {
			t.Errorf("%s%s gets %d %s, %v, want %d", test.host, test.path, status, body, err, test.want)
		}
	}
}
