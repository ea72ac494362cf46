package fromk3s

import (
	"strings"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const (
	ingress = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {traefik.ingress.kubernetes.io/router.priority: "1"}}
spec:
  rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`
	// The kind is one of Traefik's that the chart of this test does not have.
	middleware = `
apiVersion: traefik.io/v1alpha1
kind: Middleware
metadata: {name: strip}
spec: {stripPrefix: {prefixes: [/web]}}
`
	route = `
apiVersion: traefik.io/v1alpha1
kind: IngressRoute
metadata: {name: web}
spec: {entryPoints: [web], routes: [{match: Host("web.example.com"), kind: Rule, services: [{name: web, port: 80}]}]}
`
)

// ingresses applies what k3s's ingress controller serves, in a cluster that has disabled kedge's gateway as
// it had disabled Traefik. check-config has told before what the gateway would not serve. Objects whose
// kinds exist are applied.
func (s *scenario) ingresses() {
	s.Log("before the move")
	const old = "/var/lib/rancher/k3s/server/manifests/"
	s.Server.Host.WriteFile(old+"web.yaml", ingress+"---"+route)
	output, err := s.Server.Host.Kedge(s.Context(), "check-config", "--from", "/").CombinedOutput()
	if err == nil {
		s.Error("check-config finds nothing to tell")
	}
	for name, says := range map[string]string{
		"Ingress web":      "The gateway ignores traefik.ingress.kubernetes.io/router.priority",
		"IngressRoute web": "install Traefik from its chart first: see docs/gateway.md",
	} {
		found := false
		for line := range strings.Lines(string(output)) {
			found = found || strings.Contains(line, name+" ") && strings.Contains(line, says)
		}
		if !found {
			s.Errorf("of %s, %q is not in\n%s", name, says, output)
		}
	}

	s.Log("after it")
	s.write("web.yaml", ingress+"---"+route)
	s.has([]string{"web"}, "ingress,ingressroutes.traefik.io", "-o", "name")
	s.write("strip.yaml", middleware)
	s.Told("kube-system", "manifest-strip.yaml", "the cluster has no kind Middleware in traefik.io/v1alpha1", "CustomResourceDefinition")
	if address := s.Kubectl("get", "ingress", "web", "--namespace="+cluster.Namespace, "-o", "jsonpath={.status.loadBalancer}"); strings.Contains(address, "ip") {
		s.Errorf("the Ingress has the addresses %s", address)
	}
}
