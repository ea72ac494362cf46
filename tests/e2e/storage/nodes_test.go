package storage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

const topologyKey = "local.kedge.dev/node"

// TestTwoNodes checks that a volume stays on its node, whatever happens to the node: other nodes do
// not get its pod, and the node comes back with the data. When the node is gone for good, kedge
// says how to give the volume up.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := start(t, network)
	host, disk := newHost(t, network, "agent-1")
	agent := host.StartAgent(t, s.Server)
	agent.WaitReady()

	s.Eventually("the room of both nodes to be known", func() error {
		capacities, err := s.Client.StorageV1().CSIStorageCapacities("").List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		nodes := map[string]bool{}
		for _, capacity := range capacities.Items {
			if capacity.StorageClassName == "local" && capacity.Capacity != nil && !capacity.Capacity.IsZero() {
				nodes[capacity.NodeTopology.MatchLabels[topologyKey]] = true
			}
		}
		if !nodes["server-1"] || !nodes["agent-1"] {
			return fmt.Errorf("got capacities of the nodes %v, want server-1 and agent-1", nodes)
		}
		return nil
	})

	t.Log("a claim goes to the node that has space")
	s.Apply(claim{name: "large", size: "5Gi"}.yaml() + pod{name: "large", claims: []string{"large"}, node: "agent-1"}.yaml())
	s.Pod("large")
	s.Apply(claim{name: "larger", size: "6Gi"}.yaml() + pod{name: "larger", claims: []string{"larger"}}.yaml())
	if node := s.Pod("larger").Spec.NodeName; node != "server-1" {
		t.Errorf("the pod is on %s", node)
	}
	s.removed("pod/large", "pod/larger", "pvc/large", "pvc/larger")
	s.clean()

	s.Apply(claim{name: "data", size: "64Mi"}.yaml() + pod{name: "there", claims: []string{"data"}, node: "agent-1", before: "[ -e /data/file ] || echo kept >/data/file; sync"}.yaml())
	s.Pod("there")
	volume := s.volumeOf("data")
	if where := nodesOf(volume); !slices.Equal(where, []string{"agent-1"}) {
		t.Errorf("the volume is on %v", where)
	}

	t.Log("a pod of another node does not get it")
	s.Apply(pod{name: "here", claims: []string{"data"}, node: "server-1"}.yaml())
	s.saidOf("Pod", "here", "affinity")
	s.removed("pod/here")

	t.Log("a pod without a fixed node goes to the volume's node")
	s.Apply(pod{name: "anywhere", claims: []string{"data"}}.yaml())
	if node := s.Pod("anywhere").Spec.NodeName; node != "agent-1" {
		t.Errorf("the pod is on %s", node)
	}
	s.removed("pod/anywhere")

	t.Log("the node goes away and comes back")
	host.Reboot()
	s.saidOf("PersistentVolumeClaim", "data", "agent-1", "has not answered", "kubectl delete node agent-1")
	agent.Start()
	agent.WaitReady()
	s.WaitNode("agent-1", corev1.ConditionTrue)
	s.In("there", "the file", func(content string) bool { return content == "kept" }, "cat", "/data/file")

	t.Log("the node is gone for good, and its volume is given up as kedge says")
	agent.Kill9()
	s.Kubectl("delete", "node", "agent-1")
	s.saidOf("PersistentVolumeClaim", "data", "agent-1", "no longer in the cluster", "kubectl delete pvc data --namespace "+namespace)
	s.Kubectl("delete", "pvc", "data", "--namespace", namespace, "--wait=false")
	s.Kubectl("delete", "pod", "there", "--ignore-not-found", "--grace-period=0", "--force")
	s.gone(volume.Name)
	s.clean()

	t.Log("the node comes back after all and reports what it still has")
	agent.Start()
	agent.WaitReady()
	s.Eventually("the agent's status to tell of the volume", func() error {
		if status := statusOf(s.Context(), host); !strings.Contains(status, "/"+volume.Name) || !strings.Contains(status, "belongs to no PersistentVolume") {
			return fmt.Errorf("it is\n%s", status)
		}
		return nil
	})
	if err := leftOn(host, disk); err == nil {
		t.Error("the data of the volume are no longer on the agent's disk")
	}
}

// nodesOf returns the nodes that may use a volume.
func nodesOf(volume *corev1.PersistentVolume) (nodes []string) {
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, expression := range term.MatchExpressions {
			if expression.Key == topologyKey {
				nodes = append(nodes, expression.Values...)
			}
		}
	}
	return nodes
}
