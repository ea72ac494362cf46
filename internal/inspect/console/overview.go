package console

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// overview says whether the cluster is well, and what has changed.
var overview = view{"overview", says("Overview"), func(v *visit) any {
	told := v.wrong("")
	all := v.nodeRows()
	changes := v.events("")
	return struct {
		Now     time.Time
		Wrong   unwell
		Nodes   []nodeRow
		Changes []eventRow
	}{v.now, told, all, changes[:min(len(changes), 12)]}
}}

// wrong returns what is not well in a namespace, or in the cluster.
func (v *visit) wrong(namespace string) unwell {
	if v.fault != nil {
		return unwell{}
	}
	told, err := v.unwell(v.ctx, namespace)
	if err != nil && v.fault == nil {
		v.fault = err
	}
	return told
}

// nodeRow is a node in a list.
type nodeRow struct {
	Name, State, Version, Address string
	Well                          bool
	Pods                          int
	Created                       time.Time
}

// nodeTable is a list of nodes.
type nodeTable struct {
	Nodes []nodeRow
	Now   time.Time
}

// nodeRows returns all nodes.
func (v *visit) nodeRows() (rows []nodeRow) {
	all := listed(v, "nodes", v.Clients.Kubernetes.CoreV1().Nodes().List)
	if all == nil {
		return nil
	}
	counts := map[string]int{}
	if pods := listed(v, "pods of all namespaces", v.Clients.Kubernetes.CoreV1().Pods("").List); pods != nil {
		for _, pod := range pods.Items {
			if !ended(&pod) {
				counts[pod.Spec.NodeName]++
			}
		}
	}
	for _, n := range all.Items {
		row := nodeRow{Name: n.Name, Version: n.Status.NodeInfo.KubeletVersion, Pods: counts[n.Name], Created: n.CreationTimestamp.Time}
		row.State, row.Well = nodeState(&n)
		for _, address := range n.Status.Addresses {
			if address.Type == corev1.NodeInternalIP && row.Address == "" {
				row.Address = address.Address
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// nodeState returns a word for the state of a node.
func nodeState(n *corev1.Node) (state string, well bool) {
	switch {
	case !nodeobject.IsReady(n):
		return "not ready", false
	case n.Spec.Unschedulable:
		return "cordoned", true
	}
	return "ready", true
}

// ended tells whether a pod runs no more.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// namespaces lists the namespaces.
var namespaces = view{"namespaces", says("Namespaces"), func(v *visit) any {
	type row struct {
		Name         string
		Pods, Unwell int
		Created      time.Time
	}
	var rows []row
	all := listed(v, "namespaces", v.Clients.Kubernetes.CoreV1().Namespaces().List)
	if all == nil {
		return struct {
			Now  time.Time
			Rows []row
		}{v.now, []row{{Name: v.Namespace}}} // the user's own one, which may be all that the user has
	}
	pods := listed(v, "pods of all namespaces", v.Clients.Kubernetes.CoreV1().Pods("").List)
	counts, bad := map[string]int{}, map[string]int{}
	if pods != nil {
		for _, pod := range pods.Items {
			counts[pod.Namespace]++
			if _, well := podState(&pod); !well {
				bad[pod.Namespace]++
			}
		}
	}
	for _, n := range all.Items {
		rows = append(rows, row{n.Name, counts[n.Name], bad[n.Name], n.CreationTimestamp.Time})
	}
	return struct {
		Now  time.Time
		Rows []row
	}{v.now, rows}
}}

// eventRow is an Event in a list.
type eventRow struct {
	At      time.Time
	Object  why.Object
	Reason  string
	Text    string
	Warning bool
	Count   int32
}

// events returns the Events of a namespace or of all of them, the newest first.
func (v *visit) events(namespace string) (rows []eventRow) {
	all := listed(v, "Events", v.Clients.Kubernetes.CoreV1().Events(namespace).List)
	if all == nil {
		return nil
	}
	for _, e := range all.Items {
		rows = append(rows, eventRow{
			events.Seen(&e), why.Object{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name},
			e.Reason, e.Message, e.Type == corev1.EventTypeWarning, max(e.Count, 1),
		})
	}
	slices.SortStableFunc(rows, func(a, b eventRow) int { return b.At.Compare(a.At) })
	return rows
}
