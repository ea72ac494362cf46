package why

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// podWay is what happens to a pod, in this order.
var podWay = []stage[*corev1.Pod]{
	{name: "deletion", rules: podDeletion, passed: func(_ *world, p *corev1.Pod) string {
		if p.DeletionTimestamp != nil {
			return ""
		}
		return "nobody has deleted it"
	}, waiting: "the pod is being deleted, and its containers have time to stop"},
	{name: "scheduling", rules: scheduling, passed: func(_ *world, p *corev1.Pod) string {
		if p.Spec.NodeName == "" {
			return ""
		}
		return "it has the node " + p.Spec.NodeName
	}, waiting: "the scheduler has not chosen a node yet"},
	{name: "node", rules: podNode, passed: func(*world, *corev1.Pod) string { return "the node answers" }},
	{name: "eviction", rules: eviction, passed: func(_ *world, p *corev1.Pod) string {
		if p.Status.Phase == corev1.PodSucceeded {
			return "all containers have ended, and none has failed"
		}
		return "the node has not ended it"
	}},
	{name: "volumes and network", rules: sandbox, passed: func(_ *world, p *corev1.Pod) string {
		if !prepared(p) && !finished(p) {
			return ""
		}
		return "all volumes are mounted, and the address is " + cmp.Or(p.Status.PodIP, "none")
	}, waiting: "the node prepares volumes and network"},
	{name: "images", rules: images, passed: func(_ *world, p *corev1.Pod) string {
		for _, c := range containers(p) {
			if !isPulled(c) && !finished(p) {
				return ""
			}
			if c.init && !succeeded(c) && !(c.sidecar() && ptr.Deref(c.status.Started, false)) {
				return "the node has the images of the containers so far"
			}
		}
		return "the node has the images of all containers"
	}, waiting: "the node pulls an image"},
	{name: "start", rules: starting, passed: func(_ *world, p *corev1.Pod) string {
		for _, c := range containers(p) {
			if !c.init && (c.status == nil || c.status.State.Running == nil && c.status.State.Terminated == nil) {
				return ""
			}
		}
		return "all containers have started"
	}, waiting: "a container has not started yet. Init containers run first, one after the other"},
	{name: "readiness", rules: readiness, passed: func(_ *world, p *corev1.Pod) string {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			return "its work is done"
		case !ready(p):
			return ""
		}
		return "it is ready"
	}, waiting: "the pod is not ready yet"},
}

// prepared tells whether the volumes and the network of a pod are ready. A pod with hostNetwork has its address before that.
func prepared(p *corev1.Pod) bool {
	c := condition(p, corev1.PodReadyToStartContainers)
	return p.Status.PodIP != "" && (c == nil || c.Status == corev1.ConditionTrue)
}

// finished tells whether a pod will not run any more.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ready tells whether a pod is ready.
func ready(p *corev1.Pod) bool {
	c := condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// condition returns a condition of a pod, or nil.
func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// container is a container of a pod with what its node says of it.
type container struct {
	corev1.Container
	status *corev1.ContainerStatus // nil if the node has not said anything yet
	init   bool
}

// String names the container in a sentence.
func (c container) String() string {
	if c.init {
		return "init container " + c.Name
	}
	return "container " + c.Name
}

// sidecar tells whether an init container keeps running beside the others.
func (c container) sidecar() bool {
	return c.init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// succeeded tells whether a container has ended without an error.
func succeeded(c container) bool {
	return c.status != nil && c.status.State.Terminated != nil && c.status.State.Terminated.ExitCode == 0
}

// isPulled tells whether the node has the image of a container. The status has no imageID until the container exists.
func isPulled(c container) bool {
	if c.status == nil {
		return false
	}
	waiting := c.status.State.Waiting
	return c.status.ImageID != "" || waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing"
}

// containers returns the containers of a pod in the order in which they start.
func containers(p *corev1.Pod) (all []container) {
	for _, c := range p.Spec.InitContainers {
		all = append(all, container{c, statusOf(p.Status.InitContainerStatuses, c.Name), true})
	}
	for _, c := range p.Spec.Containers {
		all = append(all, container{c, statusOf(p.Status.ContainerStatuses, c.Name), false})
	}
	return all
}

func statusOf(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// podDeletion says why a pod that was deleted is still there.
var podDeletion = []rule[*corev1.Pod]{
	{"preempted", func(_ *world, p *corev1.Pod) *finding {
		c := condition(p, corev1.DisruptionTarget)
		if p.DeletionTimestamp == nil && !finished(p) || c == nil || c.Status != corev1.ConditionTrue || c.Reason != corev1.PodReasonPreemptionByScheduler {
			return nil
		}
		return found("give the pod a higher priorityClassName, or add a node", "the scheduler ends the pod, to make room for a pod of a higher priority")
	}},
	{"deleted-with-finalizers", func(w *world, p *corev1.Pod) *finding { return stuck(w, "pod", p) }},
	{"deleted-on-lost-node", func(w *world, p *corev1.Pod) *finding {
		if p.DeletionTimestamp == nil || w.Now().Before(p.DeletionTimestamp.Time) {
			return nil
		}
		n := silentNode(w, p.Spec.NodeName)
		if n == nil {
			return nil
		}
		return found(fmt.Sprintf("start that machine again. If it is gone for good: kubectl delete node %s", p.Spec.NodeName),
			"the pod was deleted %s ago, and node %s, which has to end it, does not answer", since(w, p.DeletionTimestamp.Time), p.Spec.NodeName)
	}},
	{"slow-to-stop", func(w *world, p *corev1.Pod) *finding {
		if p.DeletionTimestamp == nil || w.Now().Before(p.DeletionTimestamp.Add(time.Minute)) {
			return nil
		}
		return found(fmt.Sprintf("read the log of kedge on node %s: journalctl -u kedge. As the last resort: kubectl -n %s delete pod %s --force", p.Spec.NodeName, p.Namespace, p.Name),
			"the pod had to stop %s ago, and node %s has not ended it", since(w, p.DeletionTimestamp.Time), p.Spec.NodeName)
	}},
}

// podNode says whether the node of a pod can run it.
var podNode = []rule[*corev1.Pod]{
	{"node-missing", func(w *world, p *corev1.Pod) *finding {
		if p.Spec.NodeName == "" || finished(p) {
			return nil
		}
		if _, ok := node(w, p.Spec.NodeName); ok || w.isHidden("nodes") {
			return nil
		}
		return found("start that node again, or delete the pod. If the pod has spec.nodeName, give it the name of a node: kubectl get nodes", "the pod belongs to node %s, and the cluster has no node of that name", p.Spec.NodeName)
	}},
	{"node-silent", func(w *world, p *corev1.Pod) *finding {
		n := silentNode(w, p.Spec.NodeName)
		if n == nil || finished(p) {
			return nil
		}
		return found("start that machine, or run `kedge status` there", "node %s, which has the pod, has not answered for %s", p.Spec.NodeName, since(w, n.LastTransitionTime.Time))
	}},
}

// node returns a node.
func node(w *world, name string) (*corev1.Node, bool) {
	return get(w, w.Kubernetes.CoreV1().Nodes(), "nodes", "", name)
}

// silentNode returns the condition of a node that does not answer, or nil.
func silentNode(w *world, name string) *corev1.NodeCondition {
	if name == "" {
		return nil
	}
	n, ok := node(w, name)
	if !ok {
		return nil
	}
	if c := nodeCondition(n, corev1.NodeReady); c != nil && c.Status == corev1.ConditionUnknown {
		return c
	}
	return nil
}

// nodeCondition returns a condition of a node, or nil.
func nodeCondition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// eviction says why a pod was ended.
var eviction = []rule[*corev1.Pod]{
	{"evicted", func(_ *world, p *corev1.Pod) *finding {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" {
			return nil
		}
		do := "give the pod requests that it keeps to, or give the node more room"
		switch {
		case strings.Contains(p.Status.Message, "EmptyDir"):
			do = "raise the sizeLimit of that volume, or write less into it"
		case strings.Contains(p.Status.Message, "resource: memory"):
			do = "give the pods of that node memory requests and limits, or give the node more memory"
		case strings.Contains(p.Status.Message, "ephemeral storage limit"), strings.Contains(p.Status.Message, "total limit of containers"):
			do = "raise resources.limits.ephemeral-storage of the container, or put the data into a volume with a claim"
		case strings.Contains(p.Status.Message, "ephemeral-storage"), strings.Contains(p.Status.Message, "inodes"):
			do = "make room on the disk of that node, or put the data into a volume with a claim"
		}
		return found(do, "node %s has evicted the pod: %s", p.Spec.NodeName, plain(p.Status.Message))
	}},
	{"deadline", func(_ *world, p *corev1.Pod) *finding {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "DeadlineExceeded" {
			return nil
		}
		var limit int64
		if p.Spec.ActiveDeadlineSeconds != nil {
			limit = *p.Spec.ActiveDeadlineSeconds
		}
		return found("raise activeDeadlineSeconds of the pod", "the pod ran longer than its activeDeadlineSeconds, %d, and was ended", limit)
	}},
	{"node-shutdown", func(_ *world, p *corev1.Pod) *finding {
		// The kubelet gives pods this reason when the host shuts down.
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Terminated" {
			return nil
		}
		return found(fmt.Sprintf("kubectl -n %s delete pod %s", p.Namespace, p.Name), "node %s was shut down, and has ended the pod", p.Spec.NodeName)
	}},
	{"not-admitted", func(_ *world, p *corev1.Pod) *finding {
		// The kubelet refuses a pod for these reasons.
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason == "" || len(p.Status.ContainerStatuses) > 0 {
			return nil
		}
		return found(fmt.Sprintf("remove the cause, then delete the pod: kubectl -n %s delete pod %s", p.Namespace, p.Name), "node %s has refused the pod (%s): %s", p.Spec.NodeName, p.Status.Reason, plain(strings.TrimPrefix(p.Status.Message, "Pod was rejected: ")))
	}},
}
