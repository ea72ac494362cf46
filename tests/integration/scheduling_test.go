package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pending(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// TestPreemption checks that the pod with the higher priority gets a resource of which a node has
// only one.
func TestPreemption(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	name := corev1.ResourceName("kedge.test/" + s.namespace)
	s.eventually("the node to have the thing", func() error {
		node, err := s.client.CoreV1().Nodes().Get(s.ctx, s.server.Host.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Capacity[name] = resource.MustParse("1")
		node.Status.Allocatable[name] = resource.MustParse("1")
		_, err = s.client.CoreV1().Nodes().UpdateStatus(s.ctx, node, metav1.UpdateOptions{})
		return err
	})
	s.apply(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: NAMESPACE}
value: 1000
`)
	defer s.kubectl("delete", "priorityclass", s.namespace)
	pod := func(pod, class string) string {
		return `
apiVersion: v1
kind: Pod
metadata: {name: ` + pod + `}
spec:
  terminationGracePeriodSeconds: 1
  priorityClassName: ` + class + `
  containers: [{name: main, image: ` + testserver + `, args: [sleep], resources: {limits: {` + string(name) + `: 1}}}]
`
	}
	s.apply(pod("humble", `""`))
	s.pod("humble")
	s.apply(pod("waiting", `""`))
	s.podUntil("waiting", "unschedulable", pending)
	s.apply(pod("important", "NAMESPACE"))
	s.pod("important")
	s.eventually("the preempted pod to be gone", func() error { return s.gone("humble") })
}

// gone returns an error while a pod of that name exists.
func (s *space) gone(pod string) error {
	switch _, err := s.client.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("pod %s is there", pod)
}

// TestTaints keeps pods off a tainted node, except those that tolerate the taint, and evicts pods.
// It disturbs the node, so it does not run in parallel with other tests.
func TestTaints(t *testing.T) {
	s := newSpace(t)
	node := s.server.Host.Name
	pod := func(name, tolerations string) {
		s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 1
  tolerations: [` + tolerations + `]
  containers: [{name: main, image: ` + testserver + `, args: [sleep]}]
`)
	}
	pod("first", "")
	s.pod("first")
	s.kubectl("taint", "node", node, "kedge.test/taint=yes:NoSchedule")
	defer func() { _ = s.kubectlCommand("taint", "node", node, "kedge.test/taint-").Run() }()
	pod("picky", "")
	pod("tolerant", "{key: kedge.test/taint, operator: Exists}")
	s.pod("tolerant")
	s.podUntil("picky", "unschedulable", pending)
	s.kubectl("taint", "node", node, "kedge.test/taint=yes:NoExecute", "kedge.test/taint:NoSchedule-")
	s.eventually("the first pod to be evicted", func() error { return s.gone("first") })
	s.kubectl("taint", "node", node, "kedge.test/taint-")
	s.pod("picky")
	s.pod("tolerant")
}

// TestTopologySpread spreads pods over zones. The nodes are only objects, because the scheduler
// sees no more of a node.
func TestTopologySpread(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	for _, zone := range []string{"a", "b"} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   s.namespace + "-" + zone,
				Labels: map[string]string{"kedge.test/fake": s.namespace, corev1.LabelTopologyZone: zone},
			},
			// No other test's pods should be scheduled here.
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "kedge.test/fake", Effect: corev1.TaintEffectNoSchedule}}},
		}
		if _, err := s.client.CoreV1().Nodes().Create(s.ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.client.CoreV1().Nodes().Delete(s.ctx, node.Name, metav1.DeleteOptions{}) })
		now := metav1.NewTime(time.Now())
		status := corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi")},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Fake", LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		}
		status.Allocatable = status.Capacity
		// Controllers change the node too.
		s.eventually("the node's status to be set", func() error {
			node, err := s.client.CoreV1().Nodes().Get(s.ctx, node.Name, metav1.GetOptions{})
			if err == nil {
				node.Status = status
				_, err = s.client.CoreV1().Nodes().UpdateStatus(s.ctx, node, metav1.UpdateOptions{})
			}
			return err
		})
	}
	s.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: spread}
spec:
  replicas: 4
  selector: {matchLabels: {spread: this}}
  template:
    metadata: {labels: {spread: this}}
    spec:
      nodeSelector: {kedge.test/fake: NAMESPACE}
      tolerations: [{operator: Exists}]
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {spread: this}}}
      containers: [{name: main, image: ` + testserver + `, args: [sleep]}]
`)
	s.eventually("two pods in each zone", func() error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "spread=this"})
		if err != nil {
			return err
		}
		perNode := map[string]int{}
		for _, pod := range pods.Items {
			perNode[pod.Spec.NodeName]++
		}
		if perNode[s.namespace+"-a"] != 2 || perNode[s.namespace+"-b"] != 2 {
			return fmt.Errorf("pods per node: %v", perNode)
		}
		return nil
	})
	// No kubelet ends these pods.
	s.kubectl("delete", "deployment", "spread", "--cascade=orphan")
	s.kubectl("delete", "pods", "-l", "spread=this", "--force", "--grace-period=0")
}
