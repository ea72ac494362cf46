package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

// scheduling says why a pod has no node.
var scheduling = []rule[*corev1.Pod]{
	{"scheduling-gate", unscheduled(func(_ *world, p *corev1.Pod) *finding {
		if len(p.Spec.SchedulingGates) == 0 {
			return nil
		}
		return found("see whether the controller that removes this gate runs. If nothing removes it, make the pod without spec.schedulingGates", "the scheduling gate %s holds the pod: no controller has removed it", p.Spec.SchedulingGates[0].Name)
	})},
	{"other-scheduler", unscheduled(func(w *world, p *corev1.Pod) *finding {
		name := cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName)
		if name == corev1.DefaultSchedulerName || condition(p, corev1.PodScheduled) != nil || w.Now().Sub(p.CreationTimestamp.Time) < 10*time.Second {
			return nil
		}
		return found("start that scheduler, or make the pod again without schedulerName", "the pod waits for the scheduler %s, which has not answered for %s", name, since(w, p.CreationTimestamp.Time))
	})},
	{"claim-missing", unscheduled(func(w *world, p *corev1.Pod) *finding {
		for _, name := range claimsOf(p) {
			if _, ok := claim(w, p.Namespace, name); !ok && !w.isHidden("claims") {
				return found(fmt.Sprintf("create the claim, or correct its name: kubectl -n %s get pvc", p.Namespace), "the pod needs the claim %s, and namespace %s has none of that name", name, p.Namespace)
			}
		}
		return nil
	})},
	{"claim-deleted", unscheduled(func(w *world, p *corev1.Pod) *finding {
		for _, name := range claimsOf(p) {
			if c, ok := claim(w, p.Namespace, name); ok && c.DeletionTimestamp != nil {
				return found(fmt.Sprintf("delete the pod, wait until the claim is gone (kubectl -n %s wait --for=delete pvc/%s), and create both again", p.Namespace, name), "the pod's claim %s was deleted %s ago, so the scheduler gives the pod no node", name, since(w, c.DeletionTimestamp.Time))
			}
		}
		return nil
	})},
	{"claim-not-bound", unscheduled(func(w *world, p *corev1.Pod) *finding {
		for _, name := range claimsOf(p) {
			c, ok := claim(w, p.Namespace, name)
			if !ok || c.Status.Phase == corev1.ClaimBound {
				continue
			}
			if f := failed(walk(w, c, claimWay)); f != nil {
				f.says = fmt.Sprintf("the pod's claim %s has no volume: %s", name, f.says)
				return f
			}
		}
		return nil
	})},
	{"no-node-fits", unscheduled(noNode)},
	{"unschedulable", unscheduled(func(w *world, p *corev1.Pod) *finding {
		c := condition(p, corev1.PodScheduled)
		if c == nil || c.Status != corev1.ConditionFalse {
			return nil
		}
		message, _, _ := strings.Cut(c.Message, " preemption: ")
		message = strings.TrimSuffix(message, " no new claims to deallocate,")
		do := fmt.Sprintf("kubectl -n %s describe pod %s shows what the pod asks for. Compare it with: kubectl describe nodes", p.Namespace, p.Name)
		for _, advice := range schedulerAdvice {
			if strings.Contains(message, advice.says) {
				do = advice.do
				break
			}
		}
		if w.isHidden("nodes") || w.isHidden("pods of all namespaces") {
			do = "ask a user who may read nodes and all pods to run: kedge why -n " + p.Namespace + " pod/" + p.Name
		}
		return found(do, "the scheduler says: %s", plain(message))
	})},
}

// schedulerAdvice is what to do about what the scheduler says.
var schedulerAdvice = []struct{ says, do string }{
	{"anti-affinity rules", "add a node, run fewer such pods, or make the rule a preferredDuringSchedulingIgnoredDuringExecution in spec.affinity.podAntiAffinity"},
	{"pod affinity rules", "run the pod that spec.affinity.podAffinity asks for, or correct its labelSelector and topologyKey"},
	{"topology spread constraints", "add a node, or set whenUnsatisfiable: ScheduleAnyway in spec.topologySpreadConstraints"},
	{"enough free storage", "lower the size of the claim, or make room on a node: see docs/volumes.md"},
	{"ReadWriteOncePod", "delete the other pod that uses the claim, or use the access mode ReadWriteOnce"},
	{"non-existent pv", "the volume of the claim was deleted. Delete the claim, and create it again"},
}

// unscheduled applies a rule to pods that have no node.
func unscheduled(find func(*world, *corev1.Pod) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		if p.Spec.NodeName != "" || finished(p) {
			return nil
		}
		return find(w, p)
	}
}

// claimsOf returns the names of the claims of a pod.
func claimsOf(p *corev1.Pod) (names []string) {
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, p.Name+"-"+v.Name)
		}
	}
	return names
}

// misfit is why a node cannot have a pod. Less of it is nearer.
type misfit struct {
	node    string
	reasons []string
	do      string
	// foreign is true if the pod does not want the node, as a pod of a DaemonSet wants one node only, or cannot have its volume there.
	foreign bool
	// lacking is how much of a resource is missing, as a part of what the node has.
	lacking float64
}

// noNode compares the pod with each node.
func noNode(w *world, p *corev1.Pod) *finding {
	c := condition(p, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		return nil
	}
	nodes, ok := list(w, w.Kubernetes.CoreV1().Nodes(), "nodes", "")
	if !ok {
		return nil
	}
	if len(nodes.Items) == 0 {
		return found("run kedge agent on a machine, or a server without --disable-agent: see docs/nodes.md", "the cluster has no node")
	}
	var misfits []misfit
	for i := range nodes.Items {
		if m := compare(w, p, &nodes.Items[i]); len(m.reasons) > 0 {
			misfits = append(misfits, m)
		}
	}
	if len(misfits) < len(nodes.Items) {
		return nil // something else, which the scheduler tells
	}
	slices.SortStableFunc(misfits, func(a, b misfit) int {
		if a.foreign != b.foreign {
			return map[bool]int{false: -1, true: 1}[a.foreign]
		}
		return cmp.Or(cmp.Compare(len(a.reasons), len(b.reasons)), cmp.Compare(a.lacking, b.lacking))
	})
	says := "no node can have the pod:"
	if len(misfits) == 1 {
		says = "the only node cannot have the pod:"
	}
	const shown = 5
	for i, m := range misfits[:min(shown, len(misfits))] {
		if i > 0 {
			says += ";"
		}
		says += fmt.Sprintf(" node %s %s", m.node, strings.Join(m.reasons, ", and "))
	}
	if more := len(misfits) - shown; more > 0 {
		says += fmt.Sprintf("; and %d more", more)
	}
	return &finding{says: says, do: misfits[0].do}
}

// compare says why a node cannot have a pod.
func compare(w *world, p *corev1.Pod, n *corev1.Node) misfit {
	m := misfit{node: n.Name}
	no := func(do, says string, values ...any) {
		m.reasons = append(m.reasons, fmt.Sprintf(says, values...))
		if m.do == "" {
			m.do = do
		}
	}
	if taint, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taintsOf(n), p.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true); untolerated {
		switch what, ofKubernetes := strings.CutPrefix(taint.Key, "node.kubernetes.io/"); {
		case taint.Key == corev1.TaintNodeUnschedulable:
			no("kubectl uncordon "+n.Name, "is cordoned")
		case taint.Key == corev1.TaintNodeNotReady, taint.Key == corev1.TaintNodeUnreachable:
			no("kedge why node/"+n.Name, "is not ready")
		case ofKubernetes:
			no("kedge why node/"+n.Name, "takes no pods for now (%s)", what)
		default:
			no(fmt.Sprintf("give the pod a toleration of %s in spec.tolerations, or remove the taint: kubectl taint node %s %s-", taint.Key, n.Name, taint.ToString()), "has the taint %s", taint.ToString())
		}
	}
	if wanted := wrongLabels(p.Spec.NodeSelector, n.Labels); wanted != "" {
		m.foreign = true
		no(fmt.Sprintf("correct the pod's nodeSelector, or give a node the label: kubectl label node %s %s", n.Name, wanted), "does not have the label %s", wanted)
	} else if fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err == nil && !fits {
		m.foreign = true
		no("correct the pod's spec.affinity.nodeAffinity, or the labels of the node: kubectl get nodes --show-labels", "does not fit the pod's node affinity")
	}
	if elsewhere := volumeElsewhere(w, p, n); elsewhere != "" {
		m.foreign = true
		no("make room on the node that has the volume: see docs/volumes.md", "does not have the volume of the claim %s", elsewhere)
	}
	room(w, p, n, func(what string, wanted, free resource.Quantity, part float64) {
		m.lacking = max(m.lacking, part)
		if what == string(corev1.ResourcePods) {
			no("delete other pods, add a node, or raise maxPods of the kubelet there", "has as many pods as it may have, %d", n.Status.Allocatable.Pods().Value())
			return
		}
		no(fmt.Sprintf("lower resources.requests.%s of the pod, run fewer other pods, or add a node", what), "has %s of %s free, and the pod asks for %s", readable(free), what, wanted.String())
	})
	if port := takenPort(w, p, n.Name); port != "" {
		no("give the pod another hostPort, or remove hostPort and use a Service", "has another pod with the host port %s", port)
	}
	return m
}

// taintsOf returns the taints of a node, with those that the controller manager is about to set.
func taintsOf(n *corev1.Node) []corev1.Taint {
	taints := slices.Clone(n.Spec.Taints)
	if n.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	if !nodeobject.IsReady(n) {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	return taints
}

// volumeElsewhere returns the name of a claim of the pod whose volume the node cannot have, or "".
func volumeElsewhere(w *world, p *corev1.Pod, n *corev1.Node) string {
	for _, name := range claimsOf(p) {
		c, ok := claim(w, p.Namespace, name)
		if !ok || c.Spec.VolumeName == "" {
			continue
		}
		v, ok := get(w, w.Kubernetes.CoreV1().PersistentVolumes(), "volumes", "", c.Spec.VolumeName)
		if !ok || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		if fits, err := corev1helpers.MatchNodeSelectorTerms(n, v.Spec.NodeAffinity.Required); err == nil && !fits {
			return name
		}
	}
	return ""
}

// readable rounds an amount of bytes down to Mi, and returns other amounts as they are.
func readable(q resource.Quantity) string {
	const mi = 1 << 20
	if q.Sign() < 0 {
		return "0"
	}
	if q.Value() < mi {
		return q.String()
	}
	return resource.NewQuantity(q.Value()/mi*mi, resource.BinarySI).String()
}

// wrongLabels returns the first label of a selector that an object does not have.
func wrongLabels(selector, has map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if has[key] != selector[key] {
			return key + "=" + selector[key]
		}
	}
	return ""
}

// room calls lacks for each resource that a node does not have enough of. part is how much is missing, as a part of what the node has.
func room(w *world, p *corev1.Pod, n *corev1.Node, lacks func(what string, wanted, free resource.Quantity, part float64)) {
	pods, ok := list(w, w.Kubernetes.CoreV1().Pods(corev1.NamespaceAll), "pods of all namespaces", "")
	if !ok {
		return
	}
	free := n.Status.Allocatable.DeepCopy()
	count := int64(0)
	for i := range pods.Items {
		other := &pods.Items[i]
		if other.Spec.NodeName != n.Name || finished(other) {
			continue
		}
		count++
		for name, used := range resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{}) {
			left := free[name]
			left.Sub(used)
			free[name] = left
		}
	}
	if most, ok := n.Status.Allocatable[corev1.ResourcePods]; ok && count >= most.Value() {
		lacks("pods", *resource.NewQuantity(1, resource.DecimalSI), *resource.NewQuantity(0, resource.DecimalSI), 0)
	}
	wanted := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		quantity, left := wanted[name], free[name]
		if quantity.IsZero() || quantity.Cmp(left) <= 0 {
			continue
		}
		all := n.Status.Allocatable[name]
		lacks(string(name), quantity, left, (quantity.AsApproximateFloat64()-left.AsApproximateFloat64())/max(all.AsApproximateFloat64(), 1))
	}
}

// takenPort returns a host port of the pod that another pod of the node has.
func takenPort(w *world, p *corev1.Pod, nodeName string) string {
	wanted := hostPorts(p)
	if len(wanted) == 0 {
		return ""
	}
	pods, _ := list(w, w.Kubernetes.CoreV1().Pods(corev1.NamespaceAll), "pods of all namespaces", "")
	if pods == nil {
		return ""
	}
	for i := range pods.Items {
		other := &pods.Items[i]
		if other.Spec.NodeName != nodeName || finished(other) {
			continue
		}
		for port := range hostPorts(other) {
			if wanted[port] {
				return fmt.Sprintf("%s (%s/%s)", port, other.Namespace, other.Name)
			}
		}
	}
	return ""
}

// hostPorts returns the host ports of a pod, such as 80/TCP.
func hostPorts(p *corev1.Pod) map[string]bool {
	ports := map[string]bool{}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				ports[fmt.Sprintf("%d/%s", port.HostPort, cmp.Or(port.Protocol, corev1.ProtocolTCP))] = true
			}
		}
	}
	return ports
}
