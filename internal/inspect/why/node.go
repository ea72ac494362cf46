package why

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// nodeWay is what a node needs so that it can have pods.
var nodeWay = []stage[*corev1.Node]{
	{name: "answers", rules: []rule[*corev1.Node]{
		{"node-never-seen", func(w *world, n *corev1.Node) *finding {
			if nodeCondition(n, corev1.NodeReady) != nil {
				return nil
			}
			return found("see whether kedge runs there: systemctl status kedge", "the node is registered, and its kubelet has said nothing yet")
		}},
		{"node-silent", func(w *world, n *corev1.Node) *finding {
			c := silentNode(w, n.Name)
			if c == nil {
				return nil
			}
			return found("start that machine, or run `kedge status` there. If it is gone for good: kubectl delete node "+n.Name, "the node has not answered for %s", since(w, c.LastTransitionTime.Time))
		}},
	}, passed: func(*world, *corev1.Node) string { return "its kubelet answers" }},
	{name: "ready", rules: []rule[*corev1.Node]{
		{"node-network", func(_ *world, n *corev1.Node) *finding {
			if c := nodeCondition(n, corev1.NodeNetworkUnavailable); c != nil && c.Status == corev1.ConditionTrue {
				return found("read the log of kedge there: journalctl -u kedge", "the network of the node is not ready: %s", plain(c.Message))
			}
			return nil
		}},
		{"node-not-ready", func(_ *world, n *corev1.Node) *finding {
			if c := nodeCondition(n, corev1.NodeReady); c != nil && c.Status == corev1.ConditionFalse {
				return found("run `kedge status` and `kedge check-config` there", "the node is not ready: %s", plain(c.Message))
			}
			return nil
		}},
	}, passed: func(*world, *corev1.Node) string { return "it is ready" }},
	{name: "room", rules: []rule[*corev1.Node]{
		{"node-memory", pressure(corev1.NodeMemoryPressure, "give the pods of the node resources.limits.memory, or run fewer pods there", "the memory of the node is nearly used up, and the kubelet evicts pods")},
		{"node-disk", pressure(corev1.NodeDiskPressure, "remove files from its disk, or give it a larger one", "the disk of the node is nearly full, and the kubelet removes images and pods")},
		{"node-processes", pressure(corev1.NodePIDPressure, "find the pod that starts too many processes, and delete it", "the node can start nearly no more processes, and the kubelet evicts pods")},
	}, passed: func(*world, *corev1.Node) string { return "it has memory, disk and processes left" }},
	{name: "takes pods", rules: []rule[*corev1.Node]{
		{"node-cordoned", func(_ *world, n *corev1.Node) *finding {
			if !n.Spec.Unschedulable {
				return nil
			}
			f := found("kubectl uncordon "+n.Name, "the node is cordoned, so it gets no new pods")
			f.mild = true
			return f
		}},
		{"node-version", func(w *world, n *corev1.Node) *finding {
			version, ok := read(w, "version", func() (string, error) {
				v, err := w.Kubernetes.Discovery().ServerVersion()
				if err != nil {
					return "", err
				}
				return v.GitVersion, nil
			})
			if has := n.Status.NodeInfo.KubeletVersion; ok && has != "" && has != version {
				f := found("upgrade the node: see docs/upgrades.md", "the node has the version %s, and the server has %s", has, version)
				f.mild = true
				return f
			}
			return nil
		}},
	}, passed: func(_ *world, n *corev1.Node) string {
		if len(n.Spec.Taints) > 0 {
			return fmt.Sprintf("it takes pods that tolerate %s", n.Spec.Taints[0].ToString())
		}
		return "it takes new pods"
	}},
}

// pressure is a rule about a condition of nodes.
func pressure(kind corev1.NodeConditionType, do, says string) func(*world, *corev1.Node) *finding {
	return func(_ *world, n *corev1.Node) *finding {
		if c := nodeCondition(n, kind); c == nil || c.Status != corev1.ConditionTrue {
			return nil
		}
		return found(do, "%s", says)
	}
}
