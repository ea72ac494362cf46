package variants

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/tests/harness"
)

// ownNetwork is the configuration of a network that the user brings.
const ownNetwork = `{
  "cniVersion": "1.0.0",
  "name": "own",
  "plugins": [{
    "type": "bridge", "bridge": "own0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.42.0.0/24"}]]}
  }]
}`

// TestOwnServiceProxy configures kedge as users of Cilium do: the network, the policies and the
// service proxy are theirs. Upstream's kube-proxy stands in for Cilium. Services work because of it
// alone, and kedge leaves its rules as they are.
func TestOwnServiceProxy(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	host.WriteFile("/etc/kedge/config.yaml", `
flannel-backend: none
disable-network-policy: true
disable-kube-proxy: true
disable: [servicelb, traefik]
`)
	host.WriteFile("/etc/cni/net.d/50-own.conflist", ownNetwork)
	c := start(t, host)
	c.sleeper("client", "")
	c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: direct}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [serve, "8080"]}]}
`, testserver))

	t.Log("pods reach each other, and no Service")
	address := c.pod("direct").Status.PodIP
	c.in("client", "/testserver", "fetch", "http://"+address+":8080/")
	fetch := host.Kedge(t.Context(), "kubectl", "exec", "client", "--", "/testserver", "fetch", "https://10.43.0.1/readyz")
	if output, err := fetch.CombinedOutput(); err == nil {
		t.Errorf("the API's Service answers without a proxy: %s", output)
	}
	const nft = "/run/kedge/bin/nft"
	tables := run(t, host, nft, "list", "tables")
	for _, table := range []string{"kube-proxy", "kedge-policy", "kedge-network"} {
		if strings.Contains(tables, table) {
			t.Errorf("kedge has made the tables\n%s", tables)
		}
	}

	t.Log("the user's proxy serves them")
	host.WriteFile("/etc/proxy.yaml", `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.42.0.0/16
clientConnection: {kubeconfig: /etc/kedge/kedge.yaml}
conntrack: {maxPerCore: 0, min: 0}
`)
	host.Setenv("PATH", "/run/kedge/bin:"+os.Getenv("PATH"))
	proxy := host.Command(context.Background(), buildKubeProxy(t), "--config=/etc/proxy.yaml", "--hostname-override="+host.Name)
	var log strings.Builder
	proxy.Stdout, proxy.Stderr = &log, &log
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
		if t.Failed() {
			t.Logf("kube-proxy:\n%s", log.String())
		}
	})
	c.works()

	t.Log("kedge starts again, and the proxy's rules stay")
	before := run(t, host, nft, "list", "chain", "ip", "kube-proxy", "services")
	c.server.Restart()
	c = newCluster(t, c.server)
	if after := run(t, host, nft, "list", "chain", "ip", "kube-proxy", "services"); after != before {
		t.Errorf("the rules were\n%s\nand are\n%s", before, after)
	}
	c.works()
}

// buildKubeProxy builds upstream's kube-proxy of the version that kedge has. It imports more than kedge
// does: the benchmark, which builds it too, has the sums of that.
func buildKubeProxy(t *testing.T) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for target, sources := range map[string][]string{"go.mod": {"go.mod"}, "go.sum": {"go.sum", "tests/bench/baseline/go.sum.extra"}} {
		var text []byte
		for _, source := range sources {
			part, err := os.ReadFile(filepath.Join(repository, source))
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, part...)
		}
		if err := os.WriteFile(filepath.Join(folder, target), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(folder, "kube-proxy")
	build := exec.Command("go", "build", "-mod=mod", "-modfile="+filepath.Join(folder, "go.mod"), "-o", path, "k8s.io/kubernetes/cmd/kube-proxy")
	build.Dir = repository
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube-proxy: %v\n%s", err, output)
	}
	return path
}

// TestOwnCloudController leaves new nodes to a cloud controller manager, which the test itself is. Until
// it has told what a node is, no pod runs there. kedge writes no provider ID.
func TestOwnCloudController(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := newHostOn(t, network, "server-1")
	host.WriteFile("/etc/kedge/config.yaml", `
disable-cloud-controller: true
kubelet-arg: [cloud-provider=external]
disable: [servicelb]
`)
	c := start(t, host)
	agent := newHostOn(t, network, "agent-1").StartAgent(t, c.server)
	agent.WaitReady()
	c.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: early}
spec:
  selector: {matchLabels: {app: early}}
  template:
    metadata: {labels: {app: early}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [sleep]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: waiting}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [sleep]}]}
`, testserver, testserver))
	c.eventually("the pod to wait for the cloud", func() error {
		events := c.kubectl("get", "events", "--field-selector=involvedObject.name=waiting")
		if !strings.Contains(events, "2 node(s) had untolerated taint(s)") {
			return fmt.Errorf("its events are\n%s", events)
		}
		return nil
	})
	for _, name := range []string{"server-1", "agent-1"} {
		if node := c.node(name); !uninitialized(node) || node.Spec.ProviderID != "" {
			t.Errorf("%s has the provider ID %q and the taints %v", name, node.Spec.ProviderID, node.Spec.Taints)
		}
	}

	t.Log("the cloud tells what the nodes are")
	for _, name := range []string{"server-1", "agent-1"} {
		taints, err := json.Marshal(slices.DeleteFunc(c.node(name).Spec.Taints, isUninitialized))
		if err != nil {
			t.Fatal(err)
		}
		c.patch(name, fmt.Sprintf(`{"spec": {"providerID": "cloud:///zone-1/%s", "taints": %s}}`, name, taints))
		c.patch(name, `{"status": {"addresses": [{"type": "InternalIP", "address": "`+internalIP(c.node(name))+`"}, {"type": "ExternalIP", "address": "203.0.113.7"}, {"type": "Hostname", "address": "`+name+`"}]}}`, "status")
	}
	c.pod("waiting")
	c.kubectl("rollout", "status", "daemonset/early", "--timeout=2m")

	t.Log("kedge leaves that as it is when it starts again")
	agent.Restart()
	c.server.Restart()
	c = newCluster(t, c.server)
	c.works()
	for _, name := range []string{"server-1", "agent-1"} {
		node := c.node(name)
		if uninitialized(node) || node.Spec.ProviderID != "cloud:///zone-1/"+name {
			t.Errorf("%s has the provider ID %q and the taints %v", name, node.Spec.ProviderID, node.Spec.Taints)
		}
		if !slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.7"}) {
			t.Errorf("%s has the addresses %v", name, node.Status.Addresses)
		}
	}
}

// node returns a Node.
func (c *cluster) node(name string) *corev1.Node {
	c.Helper()
	node, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return node
}

// patch changes a Node, or its status.
func (c *cluster) patch(node, patch string, subresource ...string) {
	c.Helper()
	if _, err := c.client.CoreV1().Nodes().Patch(c.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...); err != nil {
		c.Fatal(err)
	}
}

// isUninitialized tells whether a taint keeps pods away until a cloud knows the node.
func isUninitialized(taint corev1.Taint) bool {
	return taint.Key == "node.cloudprovider.kubernetes.io/uninitialized"
}

func uninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, isUninitialized)
}

func internalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}
