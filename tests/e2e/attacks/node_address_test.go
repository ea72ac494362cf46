package attacks

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestNodeTakesAnothersAddress lets root on agent-1 try to get the API server's connections to
// agent-2's kubelet and pods. It claims agent-2's address, gets a certificate for it, and opens a
// tunnel of its own.
func TestNodeTakesAnothersAddress(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	victim, agent := c.Join(network, "agent-2"), c.Join(network, "agent-1")
	c.RunWeb("web-s", "server-1")
	podB := c.RunWeb("web-b", "agent-2")
	podA := c.RunWeb("web-a", "agent-1")
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: host-b}
spec:
  nodeName: agent-2
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %s, args: [serve, %q], ports: [{containerPort: %[2]s}]}]
`, image.TestserverName, cluster.WebPort))
	c.Pod("host-b")
	mayLookAtA := `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: looks-at-agent-1}
rules: [{apiGroups: [""], resources: [nodes/proxy], resourceNames: [agent-1], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: looks-at-agent-1}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: looks-at-agent-1}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: mallory}]
`
	c.Apply(mayLookAtA)

	a := capture(c, agent)
	ownA, ownB := agent.Host.Address.String(), victim.Host.Address.String()
	a.renew(ownA, ownB) // it does not matter whether this is signed
	if _, err := a.open(a.pair("client-kubelet"), a); err != nil {
		t.Fatal(err)
	}
	own := []string{"agent-1", ownA, podA.Status.PodIP}

	// says makes the attacker change a status as its kubelet may.
	says := func(path, status string) {
		t.Helper()
		code, answer := a.curl(stolen("client-kubelet"), path+"/status", "--request", "PATCH",
			"--header", "Content-Type: application/merge-patch+json", "--data", `{"status":`+status+`}`)
		if code != http.StatusOK {
			t.Logf("%s is refused: %d %s", status, code, answer)
		}
	}
	const nodeA, webA = "/api/v1/nodes/agent-1", "/api/v1/namespaces/" + cluster.Namespace + "/pods/web-a"
	// honest checks that requests to agent-2 are answered there.
	honest := func(t *testing.T) {
		t.Helper()
		for range 5 {
			time.Sleep(200 * time.Millisecond) // the API server's caches follow
			if log, err := c.TryKubectl("", "logs", "web-b"); err != nil || !strings.Contains(log, "served / to ") {
				t.Errorf("logs of web-b: %v: %.200s", err, log)
			}
		}
		if output, err := c.TryKubectl("", "exec", "web-b", "--", "/testserver", "fetch", "http://localhost:"+cluster.WebPort+"/"); err != nil || !strings.HasPrefix(output, "hostname=web-b\n") {
			t.Errorf("exec in web-b: %v: %.200s", err, output)
		}
		if pods, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/agent-2/proxy/pods"); err != nil || !strings.Contains(pods, `"web-b"`) {
			t.Errorf("agent-2's kubelet: %v: %.200s", err, pods)
		}
		if answer, err := c.TryKubectl("", "get", "--raw", "/api/v1/namespaces/default/pods/web-b:"+cluster.WebPort+"/proxy/"); err != nil || !strings.HasPrefix(answer, "hostname=web-b\n") {
			t.Errorf("the pod web-b: %v: %.200s", err, answer)
		}
		a.wantOwn(own, "web-b", "host-b")
	}

	t.Run("by the address of its pod", func(t *testing.T) {
		says(webA, fmt.Sprintf(`{"podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}`, ownB))
		honest(t)
	})
	t.Run("by its node's addresses", func(t *testing.T) {
		says(nodeA, fmt.Sprintf(`{"addresses":[{"type":"InternalIP","address":%q},{"type":"InternalIP","address":%q},{"type":"Hostname","address":"agent-1"}]}`, ownB, podB.Status.PodIP))
		honest(t)
		// A pod in the host's network is answered by agent-2, or not at all.
		answer, err := c.TryKubectl("", "get", "--raw", "/api/v1/namespaces/default/pods/host-b:"+cluster.WebPort+"/proxy/")
		if err == nil && !strings.HasPrefix(answer, "hostname=agent-2\n") || err != nil && !strings.Contains(err.Error(), "claim the address") {
			t.Errorf("the pod host-b: %v: %.200s", err, answer)
		}
		a.wantOwn(own, "web-b", "host-b")
	})
	t.Run("a user who may look at agent-1 looks at others", func(t *testing.T) {
		for _, address := range []string{c.Server.Host.Address.String(), ownB} {
			for _, named := range []string{`,{"type":"Hostname","address":"agent-1"}`, ""} {
				says(nodeA, fmt.Sprintf(`{"addresses":[{"type":"InternalIP","address":%q}%s],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}`, address, named))
				for range 3 {
					time.Sleep(200 * time.Millisecond)
					output, err := c.TryKubectl("", "--as=mallory", "get", "--raw", "/api/v1/nodes/agent-1/proxy/pods")
					if strings.Contains(output, `"web-s"`) || strings.Contains(output, `"web-b"`) {
						t.Errorf("a user who may read agent-1 sees the pods of another node, whose address is %s: %v: %.300s", address, err, output)
					}
				}
			}
		}
		a.wantOwn(own, "web-b", "host-b")
	})
	t.Run("by a port that is no kubelet's", func(t *testing.T) {
		for _, port := range []int{22, 2379, 6443} {
			says(nodeA, fmt.Sprintf(`{"addresses":[{"type":"InternalIP","address":%q},{"type":"Hostname","address":"agent-1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}`, c.Server.Host.Address, port))
			output, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/agent-1/proxy/metrics")
			// If there is an answer, it is the attacker's own.
			if err != nil && strings.Contains(err.Error(), c.Server.Host.Address.String()) || err == nil && output != "intercepted" {
				t.Errorf("port %d: %v: %.200s", port, err, output)
			}
		}
		a.wantOwn(own, "web-b", "host-b")
	})

	a.release()
	c.Eventually("all to be reached when the node says the truth", func() error {
		for pod, node := range map[string]string{"web-a": "agent-1", "host-b": "agent-2", "web-s": "server-1"} {
			hostname := pod
			if pod == "host-b" {
				hostname = node
			}
			answer, err := c.TryKubectl("", "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":"+cluster.WebPort+"/proxy/")
			if err != nil || !strings.HasPrefix(answer, "hostname="+hostname+"\n") {
				return fmt.Errorf("%s: %w: %.200s", pod, err, answer)
			}
			pods, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/pods")
			if err != nil || !strings.Contains(pods, `"`+pod+`"`) {
				return fmt.Errorf("kubelet of %s: %w: %.200s", node, err, pods)
			}
		}
		return nil
	})
}
