package attacks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestNodeLoadBalancer lets root on an agent take addresses of Services that belong to another node,
// write Leases of the control plane, and claim the address of another node for a Service.
func TestNodeLoadBalancer(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	a, balancer, kubelet := on(c, agent.Host), stolen("client-loadbalancer"), stolen("client-kubelet")
	c.Apply(`
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: servers}
spec:
  addresses: [172.31.0.100]
  nodeSelector: {matchLabels: {kubernetes.io/hostname: server-1}}
---
apiVersion: v1
kind: Service
metadata: {name: pooled, annotations: {kedge.dev/pool: servers}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
`)
	const lease = "kedge-address-172.31.0.100"
	c.Eventually("the server to hold the address", func() error {
		found, err := c.Client.CoordinationV1().Leases("kube-system").Get(t.Context(), lease, metav1.GetOptions{})
		if err == nil && (found.Spec.HolderIdentity == nil || *found.Spec.HolderIdentity != "server-1") {
			err = fmt.Errorf("the holder is %v", found.Spec.HolderIdentity)
		}
		return err
	})
	// replace writes a Lease as somebody on the agent, who has changed it.
	replace := func(name string, change func(map[string]any)) (output string, err error) {
		c.Eventually("a write of "+name+" between two of its holder", func() error {
			var object map[string]any
			text := c.Kubectl("get", "lease", name, "--namespace=kube-system", "-o=json")
			if err := json.Unmarshal([]byte(text), &object); err != nil {
				t.Fatal(err)
			}
			change(object)
			changed, marshalErr := json.Marshal(object)
			if marshalErr != nil {
				t.Fatal(marshalErr)
			}
			output, err = a.kubectl(balancer, string(changed), "replace", "--validate=false", "-f", "-")
			if err != nil && strings.Contains(err.Error(), "Conflict") {
				return err
			}
			return nil
		})
		return output, err
	}
	holds := func(object map[string]any) { object["spec"].(map[string]any)["holderIdentity"] = "agent-1" }
	output, err := replace(lease, holds)
	a.wantForbidden("take an address of another node", output, err)
	output, err = replace(lease, func(object map[string]any) {
		holds(object)
		object["metadata"].(map[string]any)["annotations"].(map[string]any)["loadbalancer.kedge.dev/nodes"] = "agent-1"
	})
	a.wantForbidden("allow itself an address", output, err)
	output, err = replace(lease, func(object map[string]any) { object["spec"].(map[string]any)["holderIdentity"] = "" })
	a.wantForbidden("make another node give up an address", output, err)
	all, err := c.Client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range all.Items {
		if other.Name != lease {
			output, err := replace(other.Name, holds)
			a.wantForbidden("write the Lease "+other.Name, output, err)
		}
	}
	output, err = a.patchNode(balancer, "server-1", "status", `{"metadata": {"annotations": {"loadbalancer.kedge.dev/ports": "{}"}}}`)
	a.wantForbidden("report the ports of another node", output, err)
	output, err = a.patchNode(stolen("client-gateway"), "server-1", "status", `{"metadata": {"annotations": {"gateway.kedge.dev/listening": "30080/tcp"}}}`)
	a.wantForbidden("report the sockets of another node", output, err)

	// The agent claims the address of the server, and says that the port is free.
	server := c.Server.Host.Address.String()
	c.Server.Host.Listen(":8081")
	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: busy}
spec: {type: LoadBalancer, ports: [{port: 8081}]}
`)
	c.Told(cluster.Namespace, "busy", "8081/tcp", "server-1")
	for _, kind := range []string{"InternalIP", "ExternalIP"} {
		patch := fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": %q, "address": %q}, {"type": "Hostname", "address": "agent-1"}]}}`,
			agent.Host.Address, kind, server)
		if output, err := a.patchNode(kubelet, "agent-1", "status", patch); err != nil {
			t.Errorf("the agent cannot claim an address as %s, so this test shows nothing: %v: %s", kind, err, output)
		}
		for range 20 {
			service, err := c.Client.CoreV1().Services(cluster.Namespace).Get(t.Context(), "busy", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(service.Status.LoadBalancer.Ingress, func(ingress corev1.LoadBalancerIngress) bool { return ingress.IP == server }) {
				t.Fatalf("by a claim as %s the Service has the server's address", kind)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}
