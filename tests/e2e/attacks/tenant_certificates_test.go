package attacks

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/testutil/acmeserver"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// stolenCertificates are objects of the tenant that ask for a certificate for the host of the bank: a Gateway, an
// Ingress, and a Gateway that also has a host of its own.
const stolenCertificates = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: by-gateway, annotations: {gateway.kedge.dev/acme: "true"}}
spec:
  gatewayClassName: kedge
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: bank.example, tls: {certificateRefs: [{name: stolen-by-gateway}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: by-ingress, annotations: {gateway.kedge.dev/acme: "true"}}
spec:
  ingressClassName: kedge
  tls: [{hosts: [bank.example], secretName: stolen-by-ingress}]
  rules: [{host: bank.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: both, annotations: {gateway.kedge.dev/acme: "true"}}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: own, port: 443, protocol: HTTPS, hostname: beside.tenant.example, tls: {certificateRefs: [{name: stolen-beside}]}}
  - {name: bank, port: 443, protocol: HTTPS, hostname: bank.example, tls: {certificateRefs: [{name: stolen-beside}]}}
`

// ownCertificate is what the tenant may ask for.
const ownCertificate = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own, annotations: {gateway.kedge.dev/acme: "true"}}
spec:
  gatewayClassName: kedge
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: tenant.example, tls: {certificateRefs: [{name: own}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own}
spec: {parentRefs: [{name: own}], rules: [{backendRefs: [{name: web, port: 80}]}]}
`

// TestTenantACME plays a user with all rights in one namespace. The user asks kedge for a certificate. Its host
// belongs to an older Ingress of another namespace. The authority certifies each host that answers its questions.
func TestTenantACME(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	outside, host := network.NewHost(t, "outside"), cluster.NewHost(t, network, "server-1")
	authority := acmeserver.Start(t, outside.Listen(":8443"))
	authority.Kinds = []string{acmeserver.HTTP01}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: outside.DialContext, DisableKeepAlives: true}}
	authority.SetProbe(func(_, name, token, want string) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host.Address.String()+"/.well-known/acme-challenge/"+token, nil)
		if err != nil {
			return err
		}
		request.Host = name
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if got, err := io.ReadAll(answer.Body); err != nil || string(got) != want {
			return errors.Join(err, fmt.Errorf("%s answers %d %q", name, answer.StatusCode, got))
		}
		return nil
	})
	host.WriteFile("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n%s %s\n", host.Address, host.Name, outside.Address, acmeserver.Host))
	host.WriteFile("/etc/ssl/authority.pem", string(authority.Trust()))
	host.Setenv("SSL_CERT_FILE", "/etc/ssl/authority.pem")
	server := host.StartServer(t, "--gateway-acme-server="+authority.URL("directory"))
	server.WaitReady()
	n := newNeighborsOn(cluster.Of(t, server), outside)
	apply(n.Cluster, "bank", n.secret("bank.example"))
	apply(n.Cluster, "bank", ingress("bank", "bank.example", "Prefix /"))
	n.safe("its start")

	n.tries(stolenCertificates)
	for _, name := range []string{"by-gateway", "by-ingress", "both"} {
		n.Told("tenant", name, "kedge gets no certificate for the Secret", "bank.example", "belongs to the namespace bank")
	}
	n.safe("the attack")

	t.Log("honest use: the tenant's own host. kedge orders what is allowed after it has refused the rest")
	n.tries(ownCertificate)
	n.Told("tenant", "own", `kedge got the certificate in the Secret "own"`)
	n.answers("https://tenant.example/", "tenant")
	if hosts := authority.Hosts(); slices.Contains(hosts, "bank.example") || !slices.Contains(hosts, "tenant.example") {
		t.Errorf("kedge has ordered certificates for %q", hosts)
	}
	for _, secret := range []string{"stolen-by-gateway", "stolen-by-ingress", "stolen-beside"} {
		if output, err := n.tenant.kubectl("", "get", "secret", secret); err == nil || !strings.Contains(output, "NotFound") {
			t.Errorf("the tenant has a certificate: %s, %v", output, err)
		}
	}
}

// vault is a Service of the bank outside the cluster, to which the Gateway of the bank shows a certificate. The bank
// lets routes of the tenant lead to the Service.
const vault = `
apiVersion: v1
kind: Service
metadata: {name: vault}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: vault, labels: {kubernetes.io/service-name: vault}}
addressType: IPv4
ports: [{name: https, port: 8443}]
endpoints: [{addresses: [%[1]s]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: authority}
binaryData: {ca.crt: %[2]s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: vault}
spec:
  targetRefs: [{group: "", kind: Service, name: vault}]
  validation: {hostname: vault.example, caCertificateRefs: [{group: "", kind: ConfigMap, name: authority}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: vault}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: tenant}], to: [{group: "", kind: Service}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: bank}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: {name: of-the-bank}}}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: bank.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: bank}
spec: {parentRefs: [{name: bank}], rules: [{backendRefs: [{name: vault, port: 443}]}]}
`

// borrowers are what the tenant tries to be shown to the vault as the bank: a Gateway of its own, one that names the
// certificate of the bank, and a route that also wants to be one of the bank's Gateway.
const borrowers = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: tenant.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: borrower}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: {name: of-the-bank, namespace: bank}}}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: borrower.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: thief}
spec:
  parentRefs: [{name: bank, namespace: bank}, {name: own}, {name: borrower}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /thief}}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-route, value: thief}]}}]
    backendRefs: [{name: vault, namespace: bank, port: 443}]
`

// newVault runs the app of the vault on a host outside. It says who has shown a certificate, and the route of the
// request. It returns the certificate that clients verify it with.
func newVault(t *testing.T, host *harness.Host) []byte {
	t.Helper()
	certificate, key := cluster.Certificate(t, "vault.example")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	app := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if shown := r.TLS.PeerCertificates; len(shown) > 0 {
			who = shown[0].Subject.CommonName
		}
		fmt.Fprintf(w, "shown=%s route=%s.", who, r.Header.Get("X-Route"))
	})}
	listener := tls.NewListener(host.Listen(":8443"), &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})
	go func() { _ = app.Serve(listener) }()
	t.Cleanup(func() { app.Close() })
	return certificate
}

// TestTenantClientCertificate has a user with all rights in one namespace whose requests want to pass for those of
// another namespace's Gateway, which has a certificate for its backend.
func TestTenantClientCertificate(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	outside := network.NewHost(t, "outside")
	authority := newVault(t, outside)
	n := newNeighborsOn(cluster.Start(t, network, "--gateway-backend-ranges="+outside.Address.String()), outside)
	secret, _ := tlsSecret(t, "of-the-bank", "of-the-bank")
	apply(n.Cluster, "bank", secret)
	apply(n.Cluster, "bank", fmt.Sprintf(vault, outside.Address, base64.StdEncoding.EncodeToString(authority)))
	n.says("http://bank.example/", "shown=of-the-bank route=.")

	n.tries(borrowers)
	n.says("http://tenant.example/thief", "shown=nobody route=thief.")
	n.Cluster.Eventually("the route and the Gateway to be refused", func() error {
		route := n.Cluster.Kubectl("get", "httproute", "thief", "--namespace=tenant", "-o", `jsonpath={.status.parents[?(@.parentRef.namespace=="bank")].conditions}`)
		borrower := n.Cluster.Kubectl("get", "gateway", "borrower", "--namespace=tenant", "-o", "jsonpath={.status.conditions}")
		if !strings.Contains(route, "NotAllowedByListeners") || !strings.Contains(borrower, "RefNotPermitted") {
			return fmt.Errorf("the route has %s, and the Gateway has %s", route, borrower)
		}
		return nil
	})
	// Connections of the bank's Gateway to the vault are open. Requests of others do not get one of them.
	for range 10 {
		for url, want := range map[string]string{
			"http://bank.example/": "shown=of-the-bank route=.", "http://bank.example/thief": "shown=of-the-bank route=.", "http://tenant.example/thief": "shown=nobody route=thief.",
		} {
			if output, err := n.get(url); err != nil || output != want {
				t.Errorf("%s is answered with %q, %v, want %q", url, output, err, want)
			}
		}
		if output, _ := n.get("http://borrower.example/thief"); strings.Contains(output, "shown=of-the-bank") {
			t.Errorf("a Gateway of the tenant that names the certificate of the bank: %s", output)
		}
	}

	t.Log("honest use: the bank lets routes of the tenant in")
	n.Cluster.Kubectl("patch", "gateway", "bank", "--namespace=bank", "--type=json", `--patch=[{"op": "add", "path": "/spec/listeners/0/allowedRoutes", "value": {"namespaces": {"from": "All"}}}]`)
	n.says("http://bank.example/thief", "shown=of-the-bank route=thief.")
	n.says("http://tenant.example/thief", "shown=nobody route=thief.")
}
