package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

const oneIngress = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %[1]s}
spec:
  ingressClassName: %[2]s
  rules:
  - host: %[1]s.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

// TestDisabled switches the gateway off on a running cluster, and on again.
func TestDisabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--gateway-ports=8080")
	w.web("web")
	w.Apply(fmt.Sprintf(oneIngress, "web", "kedge"))
	w.Apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 8080, protocol: HTTP}]
`)
	w.programmed("web")
	address := w.addresses()[0] + ":80"
	w.answers(question{address: address, url: "http://web.example.com/"}, 200)

	const settings = "/etc/kedge/config.yaml"
	// k3s's name for its own.
	w.Server.Host.WriteFile(settings, "disable: [traefik]\n")
	w.Server.Restart()
	w.Server.WaitReady()
	for _, address := range w.addresses() {
		w.refuses(address + ":80")
	}
	w.Eventually("the Ingress to have no addresses", func() error {
		if addresses := w.Kubectl("get", "ingress", "web", "-o", "jsonpath={.status.loadBalancer.ingress}"); addresses != "" {
			return fmt.Errorf("it has %s", addresses)
		}
		return nil
	})
	w.Kubectl("wait", "gateway/web", "--for=condition=Programmed=Unknown", "--timeout=1m")
	w.Kubectl("wait", "service/kedge-gateway", "--namespace=kube-system", "--for=delete", "--timeout=1m")
	if addresses := w.Kubectl("get", "gateway", "web", "-o", "jsonpath={.status.addresses}"); addresses != "" {
		t.Errorf("the Gateway has the addresses %s", addresses)
	}
	w.Kubectl("get", "crd", "gateways.gateway.networking.k8s.io")
	if output, err := w.TryKubectl("", "get", "ingressclass", "kedge"); err == nil {
		t.Errorf("the IngressClass is still there: %s", output)
	}
	w.Server.Host.WriteFile(settings, "")
	w.Server.Restart()
	w.Server.WaitReady()
	w.answers(question{address: address, url: "http://web.example.com/"}, 200)
}

// TestOtherController has pods of another ingress controller at port 80 of a node, and Ingresses of other
// classes.
func TestOtherController(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.web("web")
	w.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  nodeName: %s
  containers: [{name: main, image: %q, args: [serve, "8080"], ports: [{containerPort: 8080, hostPort: 80}]}]
`, w.nodes[1].Name, image.TestserverName))
	w.Pod("other")
	roots := w.certificate("web-tls", "web.example.com")
	w.Apply(fmt.Sprintf(oneIngress, "web", "kedge") + "  tls: [{hosts: [web.example.com], secretName: web-tls}]\n")
	q := question{url: "http://web.example.com/"}
	q.address = w.addresses()[0] + ":80"
	w.answers(q, 200, "hostname=web")
	q.address = w.addresses()[1] + ":80"
	w.answers(q, 200, "hostname=other")
	w.Told("kube-system", "kedge-gateway", "port 80/tcp", "default/other")
	// The port of the pod costs kedge only this port of this node.
	q = question{address: w.addresses()[1] + ":443", url: "https://web.example.com/", roots: roots}
	w.answers(q, 200, "hostname=web")

	t.Log("a class that has no controller here")
	w.Apply(fmt.Sprintf(oneIngress, "moved", "traefik"))
	w.Told("default", "moved", "gateway-ingress-classes")
	q = question{address: w.addresses()[0] + ":80", url: "http://moved.example.com/"}
	w.answers(q, 404)
	w.Server.Host.WriteFile("/etc/kedge/config.yaml", "gateway-ingress-classes: [traefik]\n")
	w.Server.Restart()
	w.Server.WaitReady()
	w.answers(q, 200, "hostname=web")

	t.Log("a class with a controller of its own")
	w.Apply(`
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: traefik}
spec: {controller: traefik.io/ingress-controller}
`)
	w.answers(q, 404)
}

// TestUnused looks at what a cluster without Gateways and Ingresses has open.
func TestUnused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if services := w.Kubectl("get", "services", "--all-namespaces", "-o", "name"); strings.Contains(services, "gateway") {
		t.Errorf("there is a Service of a gateway without anything to serve:\n%s", services)
	}
	for _, class := range []string{"ingressclass/kedge", "gatewayclass/kedge"} {
		w.Kubectl("get", class)
	}
	if w.Kubectl("get", "ingressclass", "kedge", "-o", `jsonpath={.metadata.annotations.ingressclass\.kubernetes\.io/is-default-class}`) != "true" {
		t.Error("the IngressClass is not the default one")
	}
	w.Kubectl("wait", "gatewayclass/kedge", "--for=condition=Accepted", "--timeout=1m")
}
