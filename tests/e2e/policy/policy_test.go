// Package policy checks that NetworkPolicies hold at every moment: while kedge is killed, restarted and
// upgraded, and from the first packet of a pod. Upstream's own suites check what policies mean.
package policy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	// restarts is how often TestHoldsOverRestarts ends kedge.
	restarts = 20
	doorPort = "9000"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// friendsOnly lets only pods with the label friend=yes talk to the pods with the label app=door.
const friendsOnly = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends-only}
spec:
  podSelector: {matchLabels: {app: door}}
  ingress:
  - from: [{podSelector: {matchLabels: {friend: "yes"}}}]
`

// run starts a pod of the test image on a node, with labels in YAML's braces.
func run(c *cluster.Cluster, name, node, labels string, args ...string) *corev1.Pod {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {%s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, args: ["%s"]}]
`, name, labels, node, image.TestserverName, strings.Join(args, `", "`)))
	return c.Pod(name)
}

// door returns the address of a pod that counts who arrives.
func door(c *cluster.Cluster, name, node string) (address string) {
	c.Helper()
	return net.JoinHostPort(run(c, name, node, "app: door", "serve-doors", doorPort).Status.PodIP, doorPort)
}

// arrived returns the lines "ADDRESS PROTOCOL COUNT" of a door. It asks from the door's own pod, because
// a pod always reaches itself.
func arrived(c *cluster.Cluster, name string) []string {
	c.Helper()
	var lines []string
	c.In(name, "the counts of "+name, func(output string) bool {
		lines = strings.Split(output, "\n")
		return true
	}, "/testserver", "fetch", "http://127.0.0.1:8080/")
	return lines
}

// wantNobody checks that nothing came from an address.
func wantNobody(c *cluster.Cluster, name string, addresses ...string) {
	c.Helper()
	for _, line := range arrived(c, name) {
		for _, address := range addresses {
			if strings.HasPrefix(line, address+" ") {
				c.Errorf("forbidden traffic arrived at %s: %s", name, line)
			}
		}
	}
}

// wantFriend waits until packets of an address have arrived.
func wantFriend(c *cluster.Cluster, name, address string) {
	c.Helper()
	c.Eventually(address+" to arrive at "+name, func() error {
		if lines := arrived(c, name); !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, address+" ") }) {
			return fmt.Errorf("only these arrived: %q", lines)
		}
		return nil
	})
}

// restartable is a server or an agent.
type restartable interface {
	Kill9()
	Terminate()
	Start()
	WaitReady()
}

// TestHoldsOverRestarts kills, stops and upgrades kedge on two nodes, while pods try what is forbidden and
// use what is allowed. Nothing forbidden arrives, and no allowed connection breaks.
func TestHoldsOverRestarts(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	nodes := []string{c.Server.Host.Name, agent.Host.Name}
	c.Apply(friendsOnly)

	addresses := map[string]string{}
	for i, node := range nodes {
		name := fmt.Sprint("door-", i)
		addresses[name] = door(c, name, node)
	}
	strangers := map[string][]string{} // addresses, by their target
	var friends []string
	for i, node := range nodes {
		for target, address := range addresses {
			stranger := run(c, fmt.Sprintf("stranger-%d-%s", i, target), node, "app: stranger", "knock", address)
			strangers[target] = append(strangers[target], stranger.Status.PodIP)
			friend := run(c, fmt.Sprintf("friend-%d-%s", i, target), node, `friend: "yes"`, "hold", address)
			friends = append(friends, friend.Name)
			wantFriend(c, target, friend.Status.PodIP)
		}
	}

	executable := os.Getenv("KEDGE_BINARY")
	for i := range restarts {
		daemon, host := restartable(c.Server), c.Server.Host
		if i%2 == 1 {
			daemon, host = agent, agent.Host
		}
		switch i % 5 {
		case 0, 1, 2:
			daemon.Kill9()
		case 3:
			daemon.Terminate()
		case 4:
			// The copy stands for another version.
			copied := filepath.Join(t.TempDir(), fmt.Sprint("kedge-", i))
			if err := errors.Join(harness.CopyFile(executable, copied), os.Chmod(copied, 0o755)); err != nil {
				t.Fatal(err)
			}
			daemon.Terminate()
			host.Install(copied)
		}
		time.Sleep(500 * time.Millisecond) // The pods run without kedge for a while.
		daemon.Start()
		daemon.WaitReady()
	}

	for target := range addresses {
		wantNobody(c, target, strangers[target]...)
	}
	for _, name := range friends {
		pod := c.Pod(name)
		if restarted := pod.Status.ContainerStatuses[0].RestartCount; restarted > 0 {
			t.Errorf("the allowed connection of %s broke %d times", name, restarted)
		}
	}
	c.Kubectl("delete", "networkpolicy", "friends-only")
	t.Log("without the policy everybody arrives, so the strangers did knock")
	for target := range addresses {
		for _, stranger := range strangers[target] {
			wantFriend(c, target, stranger)
		}
	}
}

// TestFirstPacket starts pods that may send nothing, and that begin to send with their first instruction.
func TestFirstPacket(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	address := door(c, "door", c.Server.Host.Name)
	c.Apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: quiet}
spec:
  podSelector: {matchLabels: {app: quiet}}
  policyTypes: [Ingress, Egress]
`)
	var quiet []string
	for i := range 10 {
		node := c.Server.Host.Name
		if i%2 == 1 {
			node = agent.Host.Name
		}
		quiet = append(quiet, run(c, fmt.Sprint("quiet-", i), node, "app: quiet", "knock", address).Status.PodIP)
	}
	loud := run(c, "loud", agent.Host.Name, "app: loud", "knock", address)
	wantFriend(c, "door", loud.Status.PodIP)
	wantNobody(c, "door", quiet...)
}

// TestOpenConnections cuts the open connection that a new policy forbids, and no other.
func TestOpenConnections(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	address := door(c, "door", c.Server.Host.Name)
	friend := run(c, "friend", agent.Host.Name, `friend: "yes"`, "hold", address)
	stranger := run(c, "stranger", agent.Host.Name, `friend: "no"`, "hold", address)
	wantFriend(c, "door", friend.Status.PodIP)
	wantFriend(c, "door", stranger.Status.PodIP)
	c.Apply(friendsOnly)
	c.Eventually("the stranger's connection to break", func() error {
		pod, err := c.Client.CoreV1().Pods(cluster.Namespace).Get(t.Context(), "stranger", metav1.GetOptions{})
		if err == nil && pod.Status.ContainerStatuses[0].RestartCount == 0 {
			err = fmt.Errorf("it is open")
		}
		return err
	})
	if restarted := c.Pod("friend").Status.ContainerStatuses[0].RestartCount; restarted > 0 {
		t.Error("the friend's connection broke too")
	}
}

// TestDNS has a pod that may use only the cluster's DNS, and one that may not.
func TestDNS(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	c.Apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all}
spec:
  podSelector: {}
  policyTypes: [Egress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-dns}
spec:
  podSelector: {matchLabels: {dns: "yes"}}
  policyTypes: [Egress]
  egress:
  - to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
    ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
`)
	run(c, "may", c.Server.Host.Name, `dns: "yes"`, "sleep")
	run(c, "may-not", c.Server.Host.Name, `dns: "no"`, "sleep")
	lookup := []string{"/testserver", "lookup", "host", "kubernetes.default.svc.cluster.local"}
	c.In("may", "an answer of the DNS", func(output string) bool { return output == "10.43.0.1" }, lookup...)
	if output, err := c.TryKubectl("", append([]string{"exec", "may-not", "--"}, lookup...)...); err == nil {
		t.Errorf("a pod without a right to use the DNS got %s", output)
	}

	// A policy that is too large only isolates, and says so.
	large := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
	large.Spec.Ingress = make([]networkingv1.NetworkPolicyIngressRule, 1)
	for i := range 1001 {
		large.Spec.Ingress[0].From = append(large.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"number": fmt.Sprint(i)}},
		})
	}
	if _, err := c.Client.NetworkingV1().NetworkPolicies(cluster.Namespace).Create(t.Context(), large, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Told(cluster.Namespace, "large", "1001 selectors", "its rules allow nothing")
}

// TestDisabled removes the rules when NetworkPolicies are disabled on a running cluster, and enforces them
// again afterwards.
func TestDisabled(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	host := c.Server.Host
	address := door(c, "door", host.Name)
	stranger := run(c, "stranger", host.Name, "app: stranger", "sleep")
	connect := []string{"exec", stranger.Name, "--", "/testserver", "fetch", "http://" + strings.Replace(address, ":"+doorPort, ":8080", 1)}
	c.Apply(friendsOnly)
	c.Eventually("the policy to be enforced", func() error {
		if output, err := c.TryKubectl("", connect...); err == nil {
			return fmt.Errorf("the stranger got %q", output)
		}
		return nil
	})
	tables := func() string {
		output, err := host.Command(t.Context(), "nft", "list", "tables").CombinedOutput()
		if err != nil {
			t.Fatalf("list tables: %v: %s", err, output)
		}
		return string(output)
	}
	if !strings.Contains(tables(), "kedge-policy") {
		t.Errorf("no table of policies among\n%s", tables())
	}
	c.Server.Terminate()
	server := host.StartServer(t, "--disable=network-policy")
	server.WaitReady()
	c.Eventually("the stranger to get through", func() error {
		_, err := c.TryKubectl("", connect...)
		return err
	})
	if strings.Contains(tables(), "kedge-policy") {
		t.Errorf("the table of policies is still there:\n%s", tables())
	}
	warned, err := host.Kedge(t.Context(), "kubectl", "annotate", "networkpolicy", "friends-only", "a=b").CombinedOutput()
	if err != nil || !strings.Contains(string(warned), "does not enforce NetworkPolicies") {
		t.Errorf("the API does not warn: kubectl printed %q, %v", warned, err)
	}
	server.Terminate()
	host.StartServer(t).WaitReady()
	c.Eventually("the policy to be enforced again", func() error {
		if output, err := c.TryKubectl("", connect...); err == nil {
			return fmt.Errorf("the stranger got %q", output)
		}
		return nil
	})
}
