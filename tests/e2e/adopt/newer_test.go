package adopt

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// addon returns the annotations that k3s puts on the objects of one of its manifests.
func addon(name string) string {
	return fmt.Sprintf(`annotations: {objectset.rio.cattle.io/owner-gvk: "k3s.cattle.io/v1, Kind=Addon", objectset.rio.cattle.io/owner-name: %s, objectset.rio.cattle.io/owner-namespace: kube-system}`, name)
}

// parts are objects like those with which a k3s of this version of Kubernetes runs DNS, metrics and a
// load balancer.
func parts() string {
	const containers = "containers: [{name: main, image: registry.invalid/k3s:1}]"
	return strings.Join([]string{`
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
`, `
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
data: {Corefile: ".:53 { }"}
`, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, ` + addon("coredns") + `}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec: {serviceAccountName: coredns, ` + containers + `}
`, `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, ` + addon("coredns") + `}
spec:
  clusterIP: 10.43.0.10
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, `
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system, ` + addon("metrics-server-service") + `}
spec: {selector: {k8s-app: metrics-server}, ports: [{port: 443}]}
`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io, ` + addon("metrics-apiservice") + `}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: svclb-web-12345678, namespace: kube-system, labels: {svccontroller.k3s.cattle.io/svcname: web}}
spec:
  selector: {matchLabels: {app: svclb-web-12345678}}
  template:
    metadata: {labels: {app: svclb-web-12345678}}
    spec: {` + containers + `}
`, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: etcdsnapshotfiles.k3s.cattle.io}
spec:
  group: k3s.cattle.io
  scope: Cluster
  names: {kind: ETCDSnapshotFile, plural: etcdsnapshotfiles, singular: etcdsnapshotfile}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`}, "---")
}

// TestNewer adopts what a k3s of this version of Kubernetes would have written, as far as its
// documents say: its DNS, its metrics, its load balancer, Secrets encrypted with secretbox, and what it
// knows of snapshots. A kedge without these parts writes it: the files have the same names and forms.
func TestNewer(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, node)
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	keys := fmt.Sprintf(`{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[{"resources":["secrets"],`+
		`"providers":[{"secretbox":{"keys":[{"name":"secretboxkey","secret":%q}]}},{"identity":{}}]}]}`, base64.StdEncoding.EncodeToString(secret))
	host.WriteFile("/etc/kedge/keys.json", keys)
	server := host.StartServer(t, "--disable=coredns,metrics-server,servicelb", "--kube-apiserver-arg=encryption-provider-config=/etc/kedge/keys.json")
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Eventually("the parts of k3s to be applied", func() error {
		_, err := c.TryKubectl(parts(), "apply", "--namespace=kube-system", "-f", "-")
		return err
	})
	c.Eventually("what k3s knows of a snapshot", func() error {
		_, err := c.TryKubectl("apiVersion: k3s.cattle.io/v1\nkind: ETCDSnapshotFile\nmetadata: {name: s, finalizers: [wrangler.cattle.io/managed-etcd-snapshots]}\nspec: {snapshotName: on-demand}\n", "apply", "-f", "-")
		return err
	})
	c.Kubectl("create", "secret", "generic", "kept", "--from-literal=a=b")
	c.Eventually("the pods of k3s's DNS", func() error {
		if pods := c.Kubectl("get", "pods", "--namespace=kube-system", "-o", "name"); !strings.Contains(pods, "pod/coredns-") || !strings.Contains(pods, "pod/svclb-web-") {
			return fmt.Errorf("there are %s", pods)
		}
		return nil
	})
	server.Terminate()

	other := cluster.NewHost(t, network, "server-2")
	copyAll(t, host.Path("/var/lib/kedge/server"), other.Path("/var/lib/rancher/k3s/server"))
	other.WriteFile("/var/lib/rancher/k3s/server/cred/encryption-config.json", keys)
	output, err := other.Kedge(t.Context(), "adopt", "k3s", "--node-name="+node).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", output)
	var named []string
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(fields[1], "kube-system/") {
			named = append(named, fields[0]+" "+strings.TrimPrefix(fields[1], "kube-system/"))
		}
	}
	for _, want := range []string{"deployment.apps coredns", "service kube-dns", "configmap coredns", "service metrics-server", "daemonset.apps svclb-web-12345678"} {
		if !slices.Contains(named, want) {
			t.Errorf("%s is not named", want)
		}
	}
	server = other.StartServer(t, "--node-name="+node)
	server.WaitAPI()
	c = cluster.Of(t, server)
	c.WaitNode(node, "True")
	if kept, err := c.Client.CoreV1().Secrets(cluster.Namespace).Get(c.Context(), "kept", metav1.GetOptions{}); err != nil || string(kept.Data["a"]) != "b" {
		t.Errorf("the Secret is %v, %v", kept, err)
	}
	c.RunWeb("web", node)
	c.ServeWeb()
	c.Answers("web", "http://web.default.svc.cluster.local/", "web")
	c.Eventually("metrics of the node", func() error {
		_, err := c.TryKubectl("", "top", "node", node)
		return err
	})
	if service := c.Kubectl("get", "service", "kube-dns", "--namespace=kube-system", "-o", "jsonpath={.spec.clusterIP} {.spec.selector}"); service != "10.43.0.10" {
		t.Errorf("the Service of the DNS is %q", service)
	}
	c.Kubectl("delete", "etcdsnapshotfile", "s", "--timeout=60s")
}
