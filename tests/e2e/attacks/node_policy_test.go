package attacks

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// flannelPrefix is the prefix of the annotations by which nodes find each other's pods.
const flannelPrefix = "flannel.alpha.coreos.com/"

// patchNode patches a Node, or its status, by curl: kubectl first reads the object, which not every
// user may.
func (a *attacker) patchNode(who credentials, node, subresource, patch string) (string, error) {
	a.Helper()
	status, body := a.curl(who, strings.TrimSuffix("/api/v1/nodes/"+node+"/"+subresource, "/"),
		"--request", "PATCH", "--header", "Content-Type: application/merge-patch+json", "--data", patch)
	if status != http.StatusOK {
		return "", fmt.Errorf("status %d: %s", status, body)
	}
	return "it is done", nil
}

// TestNodeObject lets root on a node change its own Node. It may not keep the Node from being deleted,
// make it another node's, or choose which pods come.
func TestNodeObject(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	a := on(c, c.Join(network, "agent-1").Host)

	for what, patch := range map[string]string{
		"label its Node":                  `{"metadata": {"labels": {"node-restriction.kubernetes.io/vault": "yes"}}}`,
		"keep its Node by a finalizer":    `{"metadata": {"finalizers": ["attacker.example/stay"]}}`,
		"make its Node somebody's":        `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "nobody", "uid": "0"}]}}`,
		"annotate its Node":               `{"metadata": {"annotations": {"attacker.example/is": "here"}}}`,
		"remove an annotation":            `{"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": null}}}`,
		"say that its node is the server": fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": %q}]}}`, c.Server.Host.Address),
		"say that its node has room":      `{"status": {"capacity": {"attacker.example/gpu": "100"}}}`,
	} {
		for _, who := range []string{"client-flannel", "client-gateway"} {
			output, err := a.patchNode(stolen(who), "agent-1", "status", patch)
			a.wantForbidden("as "+who+" "+what, output, err)
		}
	}
	for who, annotation := range map[string]string{
		"client-flannel": "gateway.kedge.dev/listening", "client-loadbalancer": "gateway.kedge.dev/listening", "client-gateway": "loadbalancer.kedge.dev/ports",
	} {
		output, err := a.patchNode(stolen(who), "agent-1", "status", `{"metadata": {"annotations": {"`+annotation+`": "1/tcp"}}}`)
		a.wantForbidden("as "+who+" write "+annotation, output, err)
	}
	addresses := func(kind, address string) string {
		return fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": %q, "address": %q}]}}`, a.host.Address, kind, address)
	}
	for what, patch := range map[string]string{
		"keep its Node by a finalizer":           `{"metadata": {"finalizers": ["attacker.example/stay"]}}`,
		"say that it is called like the server":  addresses("Hostname", "server-1"),
		"say that it is called like a Service":   addresses("Hostname", "kubernetes.default.svc"),
		"say that its DNS name is the server's":  addresses("InternalDNS", "server-1"),
		"say that its public name is a server's": addresses("ExternalDNS", "server-1"),
	} {
		output, err := a.patchNode(stolen("client-kubelet"), "agent-1", "status", patch)
		a.wantForbidden("as the kubelet "+what, output, err)
	}
	output, err := a.patchNode(stolen("client-kubelet"), "agent-1", "", `{"metadata": {"finalizers": ["attacker.example/stay"]}}`)
	a.wantForbidden("as the kubelet keep its Node, not by its status", output, err)

	// flannel, the gateway and the kubelet may write their own fields.
	if output, err := a.patchNode(stolen("client-flannel"), "agent-1", "status", `{"metadata": {"annotations": {"`+flannelPrefix+`test": "value"}}}`); err != nil {
		t.Errorf("flannel may not annotate its node: %s%v", output, err)
	}
	if output, err := a.patchNode(stolen("client-gateway"), "agent-1", "status", `{"metadata": {"annotations": {"gateway.kedge.dev/test": "value"}}}`); err != nil {
		t.Errorf("the gateway may not annotate its node: %s%v", output, err)
	}
	if output, err := a.patchNode(stolen("client-kubelet"), "agent-1", "status", addresses("Hostname", "agent-1")); err != nil {
		t.Errorf("the kubelet may not tell its addresses: %s%v", output, err)
	}
}

// TestNodeTunnelAddress lets root on a node claim that its end of the tunnels between nodes is another
// node's. The other nodes would then send that node's packets to the attacker.
func TestNodeTunnelAddress(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	a := on(c, c.Join(network, "agent-1").Host)
	victim, err := a.kubectl(stolen("client-flannel"), "", "get", "node", "server-1", `-o=jsonpath={.metadata.annotations.flannel\.alpha\.coreos\.com/backend-data}`)
	if err != nil || victim == "" {
		t.Fatalf("no tunnel address of server-1: %q, %v", victim, err)
	}
	for what, data := range map[string]string{
		"take the tunnel address of another node": victim,
		"take it in capitals":                     strings.ToUpper(victim),
		"take it among other fields":              strings.Replace(victim, "{", `{"VtepMAC": "02:00:00:00:00:01", "more": 1, `, 1),
	} {
		for _, who := range []string{"client-flannel", "client-kubelet"} {
			annotations := fmt.Sprintf(`"%sbackend-data": %q`, flannelPrefix, data)
			output, err := a.patchNode(stolen(who), "agent-1", "status", `{"metadata": {"annotations": {`+annotations+`}}}`)
			a.wantForbidden(who+" "+what, output, err)
		}
	}
	// The node may write its own address again, and a new one.
	own := fmt.Sprintf(`{"metadata": {"annotations": {"%sbackend-data": "{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:02\"}"}}}`, flannelPrefix)
	if output, err := a.patchNode(stolen("client-flannel"), "agent-1", "status", own); err != nil {
		t.Errorf("flannel may not have a new address: %s%v", output, err)
	}
}

// TestNewcomer lets a holder of a join token, who has a kubelet's certificate, register a Node with the
// pod CIDR of another node.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	newcomer := cluster.NewHost(t, network, "newcomer").StartAgent(t, c.Server, "--kubelet-arg=register-node=false")
	c.Eventually("the newcomer's certificate", func() error {
		_, err := os.Stat(newcomer.Host.Path(tlsFolder + "client-kubelet.key"))
		return err
	})
	a := on(c, newcomer.Host)
	victim, err := c.Client.CoreV1().Nodes().Get(t.Context(), "server-1", metav1.GetOptions{})
	if err != nil || victim.Spec.PodCIDR == "" {
		t.Fatalf("server-1 has no pod range: %v", err)
	}
	const object = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "newcomer"%s}, "spec": {%s}, "status": {"addresses": [%s]}}`
	create := func(metadata, spec, addresses string) (string, error) {
		return a.kubectl(stolen("client-kubelet"), fmt.Sprintf(object, metadata, spec, addresses), "create", "--validate=false", "-f", "-")
	}
	for what, fields := range map[string][3]string{
		"take another node's pod range": {"", fmt.Sprintf(`"podCIDR": %q, "podCIDRs": [%[1]q]`, victim.Spec.PodCIDR), ""},
		"choose a pod range":            {"", `"podCIDRs": ["10.42.200.0/24"]`, ""},
		"come with a finalizer":         {`, "finalizers": ["attacker.example/stay"]`, "", ""},
		"come with an owner":            {`, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "nobody", "uid": "0"}]`, "", ""},
		"come with another's name":      {"", "", `{"type": "Hostname", "address": "server-1"}`},
	} {
		output, err := create(fields[0], fields[1], fields[2])
		a.wantForbidden(what, output, err)
		if err == nil {
			// This prepares the next attempt. The Node may already be deleted, because it has no owner.
			_, _ = c.TryKubectl("", "patch", "node", "newcomer", "--type=merge", `--patch={"metadata": {"finalizers": null}}`)
			_, _ = c.TryKubectl("", "delete", "node", "newcomer", "--ignore-not-found")
		}
	}
	if output, err := create("", "", `{"type": "Hostname", "address": "newcomer"}`); err != nil {
		t.Fatalf("a newcomer may not register: %s%v", output, err)
	}
	c.Eventually("a pod range for the newcomer", func() error {
		node, err := c.Client.CoreV1().Nodes().Get(t.Context(), "newcomer", metav1.GetOptions{})
		if err == nil && node.Spec.PodCIDR == "" {
			err = errors.New("it has none")
		}
		if err == nil && node.Spec.PodCIDR == victim.Spec.PodCIDR {
			t.Errorf("the newcomer has the range of server-1: %s", node.Spec.PodCIDR)
		}
		return err
	})
}
