package attacks

import (
	"encoding/base64"
	"fmt"
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

// TestNodeReadsGateways lets root on an agent read the keys of certificates that the node does not serve:
// those of a Gateway with an address of another node's pool, and, when the node is left out of load
// balancers, all others. The attacker also tries to choose itself.
func TestNodeReadsGateways(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	a := on(c, c.Join(network, "agent-1").Host)
	c.RunWeb("web", "server-1")
	c.ServeWeb()
	vault, vaultKey := tlsSecret(t, "vault", "vault.example")
	shop, shopKey := tlsSecret(t, "shop", "shop.example")
	c.Apply(vault + shop + `
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: vault}
spec:
  addresses: [172.31.0.100]
  nodeSelector: {matchLabels: {kubernetes.io/hostname: server-1}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: vault}
spec:
  gatewayClassName: kedge
  addresses: [{value: 172.31.0.100}]
  listeners: [{name: https, port: 443, protocol: HTTPS, hostname: vault.example, tls: {certificateRefs: [{name: vault}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: vault}
spec:
  parentRefs: [{name: vault}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  ingressClassName: kedge
  tls: [{hosts: [shop.example], secretName: shop}]
  rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`)
	// answers asks from the agent's host.
	answers := func(host, address string) {
		t.Helper()
		c.Eventually(host+" to answer at "+address, func() error {
			output, err := a.run("", "curl", "--silent", "--show-error", "--insecure", "--max-time", "5", "--resolve", host+":443:"+address, "https://"+host+"/")
			if err == nil && !strings.Contains(output, "web") {
				err = fmt.Errorf("the answer is %q", output)
			}
			return err
		})
	}
	answers("vault.example", "172.31.0.100")
	answers("shop.example", a.host.Address.String())
	told := a.routes()
	if !strings.Contains(told, shopKey) {
		t.Errorf("a node that serves a host name is not told its key: %.300s", told)
	}
	if strings.Contains(told, vaultKey) || strings.Contains(told, "vault") {
		t.Error("a node is told the key of a Gateway that only nodes of another pool serve")
	}

	c.Kubectl("label", "node", "agent-1", "node.kubernetes.io/exclude-from-external-load-balancers=")
	c.Eventually("a node that is left out to be told nothing", func() error {
		if strings.Contains(a.routes(), shopKey) {
			return fmt.Errorf("it is told the key of shop.example")
		}
		return nil
	})
	for what, labels := range map[string]string{
		"leave the nodes that are left out":  `"node.kubernetes.io/exclude-from-external-load-balancers": null`,
		"choose itself for load balancers":   `"svccontroller.k3s.cattle.io/enablelb": "true"`,
		"join a pool of nodes":               `"svccontroller.k3s.cattle.io/lbpool": "vault"`,
		"choose itself by a reserved label":  `"node-restriction.kubernetes.io/enablelb": "true"`,
		"pass for the node of another pool":  `"kubernetes.io/hostname": "server-1"`,
		"give itself a label of the user":    `"pool": "vault"`,
		"take its labels away, all together": `"node.kubernetes.io/exclude-from-external-load-balancers": null, "kubernetes.io/hostname": null`,
	} {
		for _, subresource := range []string{"", "status"} {
			output, err := a.patchNode(stolen("client-kubelet"), "agent-1", subresource, `{"metadata": {"labels": {`+labels+`}}}`)
			a.wantForbidden(what, output, err)
		}
	}
	if told := a.routes(); strings.Contains(told, shopKey) || strings.Contains(told, vaultKey) {
		t.Error("the node has chosen itself")
	}

	// The kubelet still reports its zone, the administrator still chooses, and the rest still serves.
	if output, err := a.patchNode(stolen("client-kubelet"), "agent-1", "status", `{"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}`); err != nil {
		t.Errorf("a kubelet may not report its zone: %s%v", output, err)
	}
	answers("vault.example", "172.31.0.100")
	c.Kubectl("label", "node", "agent-1", "node.kubernetes.io/exclude-from-external-load-balancers-")
	c.Eventually("the node to be told what it serves again", func() error {
		if !strings.Contains(a.routes(), shopKey) {
			return fmt.Errorf("it is told nothing")
		}
		return nil
	})
	answers("shop.example", a.host.Address.String())
}
