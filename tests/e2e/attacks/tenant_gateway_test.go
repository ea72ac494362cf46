package attacks

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// neighbors are the bank, which has bank.example, and the user of the namespace tenant beside it.
type neighbors struct {
	*cluster.Cluster
	*tenant
	// client is a host outside of the cluster.
	client *attacker
}

// newNeighbors starts a server with args, and the pods of both. The bank has no Ingress yet.
func newNeighbors(t *testing.T, args ...string) *neighbors {
	t.Helper()
	harness.Require(t)
	network := harness.NewNetwork(t)
	return newNeighborsOn(cluster.Start(t, network, args...), network.NewHost(t, "client-1"))
}

// newNeighborsOn is newNeighbors for a cluster that runs already.
func newNeighborsOn(c *cluster.Cluster, client *harness.Host) *neighbors {
	c.Helper()
	n := &neighbors{Cluster: c, tenant: newTenant(c), client: on(c, client)}
	n.Cluster.Kubectl("create", "namespace", "bank")
	for _, name := range []string{"bank", "tenant"} {
		apply(c, name, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[2]s, args: [serve, "8080"], readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`, name, image.TestserverName))
		c.Kubectl("wait", "pod/"+name, "--namespace="+name, "--for=condition=Ready", "--timeout=2m")
	}
	return n
}

// ingress returns an Ingress of a host with paths, and a certificate of the Secret tls.
func ingress(name, host string, paths ...string) string {
	text := fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %s}\nspec:\n  ingressClassName: kedge\n  tls: [{hosts: [%s], secretName: tls}]\n  rules:\n", name, host)
	for _, path := range paths {
		kind, at, _ := strings.Cut(path, " ")
		text += fmt.Sprintf("  - {host: %s, http: {paths: [{path: %s, pathType: %s, backend: {service: {name: web, port: {number: 80}}}}]}}\n", host, at, kind)
	}
	return text
}

// secret returns a Secret with a certificate for a host.
func (n *neighbors) secret(host string) string {
	n.Cluster.Helper()
	object, _ := tlsSecret(n.Cluster.T, "tls", host)
	return object
}

// tries has the user of the namespace tenant apply objects, which the API lets through.
func (n *neighbors) tries(text string) {
	n.Cluster.Helper()
	if output, err := n.tenant.kubectl(text, "apply", "-f", "-"); err != nil {
		n.Cluster.Fatalf("%v: %s", err, output)
	}
}

// answers waits until the pod of a namespace answers the client at a URL.
func (n *neighbors) answers(url, pod string) {
	n.Cluster.Helper()
	n.says(url, "hostname="+pod)
}

// says waits until the answer at a URL has a text.
func (n *neighbors) says(url, text string) {
	n.Cluster.Helper()
	n.Cluster.Eventually(url+" to say "+text, func() error {
		if output, err := n.get(url); err != nil || !strings.Contains(output, text) {
			return fmt.Errorf("it is answered with %q, %v", output, err)
		}
		return nil
	})
}

// get asks the node for a URL of any host. It does not look at certificates.
func (n *neighbors) get(url string) (string, error) {
	scheme, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	port := map[string]string{"http": "80", "https": "443"}[scheme]
	return n.client.run("", "curl", "--silent", "--show-error", "--insecure", "--max-time", "20",
		"--resolve", host+":"+port+":"+n.Server.Host.Address.String(), url)
}

// safe checks that all requests to the bank go to the bank, over both ports.
func (n *neighbors) safe(after string) {
	n.Cluster.Helper()
	for _, path := range []string{"", "login", "login/x", ".well-known/acme-challenge/x"} {
		for _, scheme := range []string{"http", "https"} {
			n.answers(scheme+"://bank.example/"+path, "bank")
		}
	}
	if addresses := n.Cluster.Kubectl("get", "ingress", "bank", "--namespace=bank", "-o", "jsonpath={.status.loadBalancer.ingress}"); addresses == "" {
		n.Cluster.Errorf("after %s the Ingress of the bank has no address", after)
	}
}

// fails waits until a listener of a Gateway of the tenant has a reason, and its message a word.
func (n *neighbors) fails(gateway, listener, reason, word string) {
	n.Cluster.Helper()
	n.Cluster.Eventually(fmt.Sprintf("listener %s of %s to have the reason %s", listener, gateway, reason), func() error {
		path := fmt.Sprintf(`jsonpath={.status.listeners[?(@.name=="%s")].conditions}`, listener)
		if got := n.Cluster.Kubectl("get", "gateway", gateway, "--namespace=tenant", "-o", path); !strings.Contains(got, reason) || !strings.Contains(got, word) {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
}

// hostAttacks are objects of the tenant that want requests to bank.example, by the name of the object that is told
// why it is refused.
func hostAttacks() map[string]string {
	return map[string]string{
		"exact":     ingress("exact", "bank.example", "Exact /", "Prefix /login"),
		"patient":   ingress("patient", "bank.example", "Exact /", "Prefix /login"),
		"challenge": ingress("challenge", "bank.example", "Exact /.well-known/acme-challenge/x"),
		"route": `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: any}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: tls}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: any}]
  hostnames: [bank.example]
  rules: [{matches: [{path: {type: Exact, value: /}}, {path: {type: PathPrefix, value: /login}}], backendRefs: [{name: web, port: 80}]}]
`,
		"listener": `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: listener}
spec:
  gatewayClassName: kedge
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: bank.example, tls: {certificateRefs: [{name: tls}]}}]
`,
		"pass": `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: pass}
spec:
  gatewayClassName: kedge
  listeners: [{name: pass, port: 443, protocol: TLS, hostname: bank.example, tls: {mode: Passthrough}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: pass}
spec: {parentRefs: [{name: pass}], hostnames: [bank.example], rules: [{backendRefs: [{name: web, port: 80}]}]}
`,
	}
}

// TestTenantHosts has a user with all rights in one namespace who wants the requests to a host of
// another one.
func TestTenantHosts(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t)
	// This Ingress is older than the bank's, and names another host until the bank is there.
	n.tries(n.secret("bank.example"))
	n.tries(ingress("patient", "early.tenant.example", "Prefix /"))
	n.answers("http://early.tenant.example/", "tenant")
	apply(n.Cluster, "bank", n.secret("bank.example"))
	apply(n.Cluster, "bank", ingress("bank", "bank.example", "Prefix /"))
	n.safe("its start")

	for name, attack := range hostAttacks() {
		n.tries(attack)
		n.Told("tenant", name, "the host bank.example belongs to the namespace bank")
		n.safe("the attack " + name)
	}
	n.Told("bank", "bank", "The namespace tenant wants the host bank.example")
	if addresses := n.Cluster.Kubectl("get", "ingress", "exact", "--namespace=tenant", "-o", "jsonpath={.status.loadBalancer.ingress}"); addresses != "" {
		t.Errorf("the Ingress of the attacker has the addresses %s", addresses)
	}
	output, err := n.tenant.kubectl("", "annotate", "namespace", "tenant", "gateway.kedge.dev/hosts=bank.example")
	n.wantForbidden("give itself a host", output, err)

	t.Log("honest use: hosts of its own, a wildcard around the bank, and what the owner or an administrator allows")
	n.tries(ingress("own", "tenant.example", "Prefix /"))
	n.tries(ingress("wide", "'*.example'", "Prefix /"))
	n.answers("https://tenant.example/", "tenant")
	n.answers("http://other.example/", "tenant")
	n.safe("a wildcard")
	n.Cluster.Kubectl("annotate", "--namespace=bank", "ingress", "bank", "gateway.kedge.dev/allow-namespaces=tenant")
	n.answers("http://bank.example/login", "tenant")
	n.answers("http://bank.example/account", "bank")
	n.Cluster.Kubectl("annotate", "--namespace=bank", "ingress", "bank", "gateway.kedge.dev/allow-namespaces-")
	n.safe("the end of the permission")
	n.Cluster.Kubectl("annotate", "namespace", "tenant", "gateway.kedge.dev/hosts=bank.example")
	n.answers("http://bank.example/login", "tenant")
	n.Told("bank", "bank", "an administrator has given it")

	t.Log("a cluster with one tenant: no host has an owner, and the more specific path gets the requests")
	n.Cluster.Kubectl("annotate", "namespace", "tenant", "gateway.kedge.dev/hosts-")
	n.safe("the end of the gift")
	n.sharesHosts()
}

// sharesHosts has the administrator switch the ownership of hosts off, and checks that the Ingresses exact and
// bank serve bank.example together.
func (n *neighbors) sharesHosts() {
	n.Cluster.Helper()
	n.Cluster.Kubectl("delete", "--namespace=tenant", "gateway/any", "gateway/listener", "gateway/pass", "httproute/route", "tlsroute/pass")
	n.Server.Host.WriteFile("/etc/kedge/config.yaml", "gateway-share-hosts: true\n")
	n.Server.Restart()
	n.answers("https://bank.example/login", "tenant")
	n.answers("https://bank.example/account", "bank")
	for namespace, name := range map[string]string{"tenant": "exact", "bank": "bank"} {
		n.Cluster.Kubectl("wait", "ingress", name, "--namespace="+namespace, "--for=jsonpath={.status.loadBalancer.ingress}", "--timeout=2m")
	}
}

// The ports that an administrator allows in TestTenantPorts. A process of the node has the first one, a pod
// the second one, and nobody the third one.
const portOfProcess, portOfPod, freePort = "5432", "5433", "5434"

// doors is a pod of the bank with host ports, one of which is among those above.
const doors = `
apiVersion: v1
kind: Pod
metadata: {name: doors}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %q
    args: [serve, "8080"]
    ports: [{containerPort: 8080, hostPort: 8080}, {containerPort: 8080, hostPort: %s}]
`

// answersAt waits until a pod answers at a port of the node.
func (n *neighbors) answersAt(port, pod string) {
	n.Cluster.Helper()
	url := "http://" + net.JoinHostPort(n.Server.Host.Address.String(), port) + "/"
	n.Cluster.Eventually(pod+" to answer at port "+port, func() error {
		if output, err := n.client.run("", "curl", "--silent", "--show-error", "--max-time", "20", url); err != nil || !strings.Contains(output, "hostname="+pod) {
			return fmt.Errorf("the answer is %q, %v", output, err)
		}
		return nil
	})
}

// TestTenantPorts has a user with all rights in one namespace who wants ports of the addresses that
// all share.
func TestTenantPorts(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t, "--gateway-ports="+portOfProcess, "--gateway-ports="+portOfPod, "--gateway-ports="+freePort)
	process := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hostname=process") })} //nolint:gosec // a test
	listening := n.Server.Host.Listen(":" + portOfProcess)
	go func() { _ = process.Serve(listening) }()
	n.Server.Host.ListenPacket("udp", ":"+portOfProcess)
	apply(n.Cluster, "bank", fmt.Sprintf(doors, image.TestserverName, portOfPod))
	n.answersAt("8080", "doors")
	n.answersAt(portOfPod, "doors")
	apply(n.Cluster, "bank", n.secret("bank.example"))
	apply(n.Cluster, "bank", ingress("bank", "bank.example", "Prefix /"))
	n.safe("its start")
	n.tries("apiVersion: v1\nkind: Service\nmetadata: {name: node-port}\nspec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n")
	nodePort, err := n.tenant.kubectl("", "get", "service", "node-port", "-o", "jsonpath={.spec.ports[0].nodePort}")
	if err != nil {
		t.Fatal(err)
	}
	listeners := "{name: own, port: 80, protocol: HTTP, hostname: tenant.example}"
	taken := []string{"10250", "6443", "8472", nodePort, "8080"}
	for _, port := range append([]string{portOfProcess, portOfPod, freePort}, taken...) {
		listeners += fmt.Sprintf(", {name: p%s, port: %[1]s, protocol: TCP}, {name: u%[1]s, port: %[1]s, protocol: UDP}", port)
	}
	n.tries(fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: ports}\nspec: {gatewayClassName: kedge, listeners: [%s]}\n", listeners))
	n.tries(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: raw}
spec:
  gatewayClassName: kedge
  listeners: [{name: plain, port: 80, protocol: TCP}, {name: secure, port: 443, protocol: TCP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: raw}
spec:
  parentRefs: [{name: raw}, {name: ports}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`)
	for _, port := range taken {
		n.fails("ports", "p"+port, "PortUnavailable", "gateway-ports: ["+port+"]")
		n.fails("ports", "u"+port, "PortUnavailable", "gateway-ports: ["+port+"]")
	}
	n.fails("raw", "plain", "PortUnavailable", "is for HTTP")
	n.fails("raw", "secure", "PortUnavailable", "is for HTTPS and TLS")
	n.Told("tenant", "ports", "gateway-ports: [10250]")
	// The administrator allows these, and somebody else was there first.
	n.answersAt(freePort, "tenant")
	for _, listener := range []string{"p" + portOfProcess, "u" + portOfProcess} {
		n.fails("ports", listener, "no address serves port "+portOfProcess, "is taken by")
	}
	n.fails("ports", "p"+portOfPod, "no address serves port "+portOfPod, "a pod has the host port")
	n.Told("kube-system", "kedge-gateway", "port "+portOfPod+"/tcp", "bank/doors")
	n.safe("listeners on ports of others")
	n.answersAt("8080", "doors")
	n.answersAt(portOfPod, "doors")
	n.answersAt(portOfProcess, "process")
	ports := strings.Fields(n.Cluster.Kubectl("get", "service", "kedge-gateway", "--namespace=kube-system", "-o", "jsonpath={.spec.ports[*].port}"))
	slices.Sort(ports)
	if want := []string{"443", "443", portOfProcess, portOfProcess, portOfPod, portOfPod, freePort, freePort, "80"}; !slices.Equal(ports, want) {
		t.Errorf("the front has the ports %v, want %v", ports, want)
	}

	t.Log("honest use: the other listener of the same Gateway, and a port whose process has ended")
	n.tries(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own}
spec:
  parentRefs: [{name: ports, sectionName: own}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`)
	n.answers("http://tenant.example/", "tenant")
	process.Close()
	n.answersAt(portOfProcess, "tenant")
	n.safe("all")
}
