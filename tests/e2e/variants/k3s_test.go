package variants

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestK3sConfiguration starts with a configuration that was written for k3s.
func TestK3sConfiguration(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	host.WriteFile("/etc/kedge/config.yaml", `
write-kubeconfig-mode: "0640"
write-kubeconfig-group: "12345"
tls-san: [k3s.example.com]
disable: [traefik]
with-node-id: true
node-label: [plain, example.com/edge=true]
etcd-snapshot-retention: 3
etcd-snapshot-compress: true
pause-image: rancher/pause:3.6
nonroot-devices: true
agent-token-file: /etc/kedge/agent-token
token: mysecret
docker: false
`)
	host.WriteFile("/etc/kedge/config.yaml.d/10.yml", "kube-controller-arg: [concurrent-deployment-syncs=2]\n")
	host.WriteFile("/etc/kedge/agent-token", "for-agents-only\n")
	host.Setenv("K3S_NODE_NAME", "edge")
	host.Setenv("KEDGE_NO_SUCH", "x")
	server := host.StartServer(t)
	harness.Eventually(t, patience, "kedge to be ready", func() error {
		if !strings.Contains(server.Log(), "kubeconfig: /etc") {
			return errors.New("it is not")
		}
		return nil
	})
	c := newCluster(t, server)
	c.works()
	for _, want := range []string{
		"etcd-snapshot-retention: This is k3s's name: kedge's is snapshot-retention.", "pause-image: kedge's pause image is part of the executable.",
		"$KEDGE_NO_SUCH: No setting has this variable.",
	} {
		if !strings.Contains(server.Log(), want) {
			t.Errorf("the log has no %q", want)
		}
	}
	// traefik is k3s's name for what is the gateway here.
	if strings.Contains(server.Log(), "component=gateway-compiler") {
		t.Error("Gateways are worked out, although traefik is disabled")
	}
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("got %v, %v", nodes, err)
	}
	node := nodes.Items[0]
	if !regexp.MustCompile(`^edge-[0-9a-f]{8}$`).MatchString(node.Name) || strings.TrimSpace(run(t, host, "cat", "/etc/kedge/node/id")) != strings.TrimPrefix(node.Name, "edge-") {
		t.Errorf("the node is called %s", node.Name)
	}
	if value, ok := node.Labels["plain"]; !ok || value != "" || node.Labels["example.com/edge"] != "true" {
		t.Errorf("the node has the labels %v", node.Labels)
	}
	if token := run(t, host, "cat", "/var/lib/kedge/server/token"); !regexp.MustCompile(`^K10[0-9a-f]{64}::server:mysecret\s*$`).MatchString(token) {
		t.Errorf("the token is %s", token)
	}
	if got := run(t, host, "stat", "-c", "%a %g", "/etc/kedge/kedge.yaml"); strings.TrimSpace(got) != "640 12345" {
		t.Errorf("the kubeconfig is of %s", got)
	}
}

// TestReplacedParts leaves the service proxy, the cloud controller and HelmCharts to others, on a
// host that had all of them.
func TestReplacedParts(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	first := start(t, host)
	first.works()
	if !strings.Contains(run(t, host, "nft", "list", "tables"), "kube-proxy") {
		t.Fatal("the service proxy has no rules to remove")
	}
	first.server.Terminate()

	server := host.StartServer(t, "--disable-kube-proxy", "--disable-cloud-controller", "--disable-helm-controller")
	server.WaitReady()
	if tables := run(t, host, "nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("the rules of the service proxy are still there:\n%s", tables)
	}
	if sockets := run(t, host, harness.Busybox(t), "netstat", "-lnt"); strings.Contains(sockets, ":10256 ") {
		t.Errorf("the service proxy listens:\n%s", sockets)
	}
	log := server.Log()
	log = log[strings.LastIndex(log, " starts, data in"):]
	for _, part := range []string{"component=helm", "component=proxy\n"} {
		if strings.Contains(log, part) {
			t.Errorf("the log has %s", part)
		}
	}
}
