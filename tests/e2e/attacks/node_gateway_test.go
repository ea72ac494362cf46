package attacks

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// routes returns what the agent's node is told to serve at its gateway.
func (a *attacker) routes() string {
	a.Helper()
	// The stream does not end by itself, so curl ends with an error.
	output, _ := a.run("", "curl", "--silent", "--no-buffer", "--max-time", "3", "--cacert", tlsFolder+"server-ca.crt",
		"--resolve", "kubernetes.default.svc:6443:"+a.server.Host.Address.String(),
		"--cert", stolen("client-kubelet").certificate, "--key", stolen("client-kubelet").key,
		"https://kubernetes.default.svc:6443/v1-kedge/node/routes")
	return output
}

// tlsSecret returns a Secret with a certificate, and a part of its key as it is in JSON.
func tlsSecret(t *testing.T, name, host string) (object, part string) {
	t.Helper()
	certificate, key := cluster.Certificate(t, host)
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n---\n", name,
		base64.StdEncoding.EncodeToString(certificate), base64.StdEncoding.EncodeToString(key)), strings.Split(string(key), "\n")[1]
}

// gatewaysWithSecrets are a Gateway with an address of a pool that only the server's node has, and a Gateway
// and Ingresses that all nodes serve. Both Gateways show backends a certificate.
const gatewaysWithSecrets = `
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: vault}
spec:
  addresses: [172.31.0.100]
  nodeSelector: {matchLabels: {kubernetes.io/hostname: server-1}}
---
apiVersion: v1
kind: Service
metadata: {name: secured}
spec: {selector: {app: web}, ports: [{port: 443, targetPort: ` + cluster.WebPort + `}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: secured}
spec:
  targetRefs: [{group: "", kind: Service, name: secured}]
  validation: {hostname: secured.example, wellKnownCACertificates: System}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: vault}
spec:
  gatewayClassName: kedge
  addresses: [{value: 172.31.0.100}]
  tls: {backend: {clientCertificateRef: {name: vault-client}}}
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: vault.example, tls: {certificateRefs: [{name: vault}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: kedge
  tls: {backend: {clientCertificateRef: {name: door-client}}}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: door.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: vault}
spec:
  parentRefs: [{name: vault}]
  rules: [{backendRefs: [{name: web, port: 80}]}, {matches: [{path: {value: /secured}}], backendRefs: [{name: secured, port: 443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: door}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: secured, port: 443}]}]
---
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData: {auth: "somebody:{SHA}` + passwordHash + `"}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  ingressClassName: kedge
  tls: [{hosts: [shop.example], secretName: shop}]
  rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: admin, annotations: {ingress.kedge.dev/auth-secret: users}}
spec:
  ingressClassName: kedge
  rules: [{host: shop.example, http: {paths: [{path: /admin, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`

const passwordHash = "5en6G6MezRroT3XKqkdPOmY/BfQ="

// gatewayReader is root on an agent, who looks for Secrets in what the node is told to serve.
type gatewayReader struct {
	*attacker
	c *cluster.Cluster
	// shared has a part of each Secret that all nodes need, and pooled of each that only nodes of a pool need.
	shared, pooled map[string]string
}

// newGatewayReader makes a cluster with gatewaysWithSecrets. The reader has the node agent-1.
func newGatewayReader(t *testing.T) *gatewayReader {
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	r := &gatewayReader{
		on(c, c.Join(network, "agent-1").Host), c,
		map[string]string{"the password hash": passwordHash}, map[string]string{},
	}
	c.RunWeb("web", "server-1")
	c.ServeWeb()
	for _, of := range []struct {
		name  string
		parts map[string]string
	}{{"shop", r.shared}, {"door-client", r.shared}, {"vault", r.pooled}, {"vault-client", r.pooled}} {
		object, part := tlsSecret(t, of.name, of.name+".example")
		c.Apply(object)
		of.parts["the key of "+of.name] = part
	}
	c.Apply(gatewaysWithSecrets)
	return r
}

// reads returns which of some Secrets the agent reads.
func (r *gatewayReader) reads(parts map[string]string) (read []string) {
	r.Helper()
	told := r.routes()
	for _, what := range slices.Sorted(maps.Keys(parts)) {
		if strings.Contains(told, parts[what]) {
			read = append(read, what)
		}
	}
	return read
}

// wantShared waits until the agent reads all Secrets of what all nodes serve, or none of them.
func (r *gatewayReader) wantShared(when string, all bool) {
	r.Helper()
	want := 0
	if all {
		want = len(r.shared)
	}
	r.c.Eventually(fmt.Sprintf("the agent to read %d Secrets %s", want, when), func() error {
		if read := r.reads(r.shared); len(read) != want {
			return fmt.Errorf("it reads %q", read)
		}
		return nil
	})
}

// answers waits until the web pod answers the agent's host for a name at an address.
func (r *gatewayReader) answers(name, address string) {
	r.Helper()
	r.c.Eventually(name+" to answer at "+address, func() error {
		output, err := r.run("", "curl", "--silent", "--show-error", "--insecure", "--max-time", "5", "--resolve", name+":443:"+address, "https://"+name+"/")
		if err == nil && !strings.Contains(output, "web") {
			err = fmt.Errorf("the answer is %q", output)
		}
		return err
	})
}

// TestNodeReadsGateways lets root on an agent read the keys, password hashes and client certificates of
// Gateways and Ingresses that the node does not serve: those of a Gateway with an address of another node's
// pool, and, when the node is left out of load balancers, all others. The attacker also tries to choose
// itself.
func TestNodeReadsGateways(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	r := newGatewayReader(t)
	r.answers("vault.example", "172.31.0.100")
	r.answers("shop.example", r.host.Address.String())
	r.wantShared("of what it serves", true)
	if read := r.reads(r.pooled); len(read) > 0 || strings.Contains(r.routes(), "vault") {
		t.Errorf("a node is told of a Gateway that only nodes of another pool serve: %q", read)
	}

	r.c.Kubectl("label", "node", "agent-1", "node.kubernetes.io/exclude-from-external-load-balancers=")
	r.wantShared("when it is left out", false)
	for what, labels := range map[string]string{
		"leave the nodes that are left out":  `"node.kubernetes.io/exclude-from-external-load-balancers": null`,
		"choose itself for load balancers":   `"svccontroller.k3s.cattle.io/enablelb": "true"`,
		"join a pool of nodes":               `"svccontroller.k3s.cattle.io/lbpool": "vault"`,
		"choose itself by a reserved label":  `"node-restriction.kubernetes.io/enablelb": "true"`,
		"join a pool by a reserved label":    `"node-restriction.kubernetes.io/lbpool": "vault"`,
		"pass for the node of another pool":  `"kubernetes.io/hostname": "server-1"`,
		"give itself a label of the user":    `"pool": "vault"`,
		"take its labels away, all together": `"node.kubernetes.io/exclude-from-external-load-balancers": null, "kubernetes.io/hostname": null`,
	} {
		for _, subresource := range []string{"", "status"} {
			output, err := r.patchNode(stolen("client-kubelet"), "agent-1", subresource, `{"metadata": {"labels": {`+labels+`}}}`)
			r.wantForbidden(what, output, err)
		}
	}
	if read := slices.Concat(r.reads(r.shared), r.reads(r.pooled)); len(read) > 0 {
		t.Errorf("the node has chosen itself, and reads %q", read)
	}

	// The kubelet still reports its zone, the administrator still chooses, and the rest still serves.
	if output, err := r.patchNode(stolen("client-kubelet"), "agent-1", "status", `{"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}`); err != nil {
		t.Errorf("a kubelet may not report its zone: %s%v", output, err)
	}
	r.answers("vault.example", "172.31.0.100")
	r.c.Kubectl("label", "node", "agent-1", "node.kubernetes.io/exclude-from-external-load-balancers-")
	r.wantShared("of what it serves again", true)
	r.answers("shop.example", r.host.Address.String())
	r.byLabels()
}

// byLabels lets the administrator choose nodes for what all share: by k3s's labels, and by those that no node
// can give itself. The latter hold also if the node has given itself k3s's when it registered.
func (r *gatewayReader) byLabels() {
	const ofService = "svccontroller.k3s.cattle.io/lbpool"
	label := func(labels ...string) { r.c.Kubectl(append([]string{"label", "node"}, labels...)...) }
	for _, prefix := range []string{"svccontroller.k3s.cattle.io/", "node-restriction.kubernetes.io/"} {
		enable, pool := prefix+"enablelb", prefix+"lbpool"
		if prefix != "svccontroller.k3s.cattle.io/" {
			label("agent-1", "svccontroller.k3s.cattle.io/enablelb=true", ofService+"=safe")
		}
		label("server-1", enable+"=true")
		r.wantShared("when only another node has "+enable, false)
		label("agent-1", enable+"=true")
		r.wantShared("when it has "+enable, true)
		label("server-1", pool+"=safe")
		r.c.Kubectl("label", "service", "kedge-gateway", "--namespace=kube-system", ofService+"=safe")
		r.wantShared("when only another node has "+pool, false)
		label("agent-1", pool+"=safe")
		r.wantShared("when it has "+pool, true)
		r.c.Kubectl("label", "service", "kedge-gateway", "--namespace=kube-system", ofService+"-")
		label("--all", enable+"-", pool+"-")
	}
	if read := r.reads(r.pooled); len(read) > 0 {
		r.Errorf("the node reads %q", read)
	}
}
