package upgradecontrol

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// role is what a node is for the order of upgrades.
type role int

// These are the roles, in the order in which nodes are upgraded.
const (
	server role = iota // with an API server
	etcd               // a server without one
	agent
)

// node is what a Plan has to know about a Node.
type node struct {
	name, architecture string
	// version is that of its kubelet, which is that of kedge.
	version string
	labels  labels.Set
	role    role
	// ready says what its Node says.
	ready bool
	// addresses are those of its Node.
	addresses []string
	// unschedulable says that the node gets no new pods, and cordonedBy, which Plan wanted that.
	unschedulable   bool
	cordonedBy      string
	resourceVersion string
	// report is what the node tells about its last order, or "".
	report string
}

// nodesOf returns what a Plan has to know about Nodes, in the order in which they are upgraded.
func nodesOf(list []*corev1.Node) []*node {
	all := make([]*node, 0, len(list))
	for _, n := range list {
		of := &node{
			name: n.Name, architecture: word(n.Status.NodeInfo.Architecture), version: word(n.Status.NodeInfo.KubeletVersion),
			labels: n.Labels, role: roleOf(n), unschedulable: n.Spec.Unschedulable, ready: nodeobject.IsReady(n), resourceVersion: n.ResourceVersion,
			cordonedBy: n.Annotations[upgrades.CordonAnnotation], report: n.Annotations[upgrades.ReportAnnotation],
		}
		for _, address := range n.Status.Addresses {
			of.addresses = append(of.addresses, address.Address)
		}
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b *node) int { return cmp.Or(cmp.Compare(a.role, b.role), strings.Compare(a.name, b.name)) })
	return all
}

// maxWord is how many bytes a version or an architecture may have.
const maxWord = 64

// word returns a word that a node may choose freely, as far as it is one. It is a part of messages,
// and of the status of a Plan, which has little room.
func word(text string) string {
	return strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return '?'
	}, foreigntext.Cut(text, maxWord))
}

// roleOf returns the role of a node by its labels, which a kubelet cannot set
// (internal/controlplane/noderole).
func roleOf(n *corev1.Node) role {
	switch {
	case n.Labels["node-role.kubernetes.io/control-plane"] == "true":
		return server
	case n.Labels["node-role.kubernetes.io/etcd"] == "true":
		return etcd
	}
	return agent
}

// chosen returns the nodes that a Plan is for.
func chosen(plan *upgrades.Plan, all []*node) ([]*node, error) {
	if plan.Spec.NodeSelector == nil {
		return all, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(plan.Spec.NodeSelector)
	if err != nil {
		return nil, err
	}
	var found []*node
	for _, n := range all {
		if selector.Matches(n.labels) {
			found = append(found, n)
		}
	}
	return found, nil
}

// find returns the node with a name, or nil.
func find(all []*node, name string) *node {
	for _, n := range all {
		if n.name == name {
			return n
		}
	}
	return nil
}

// isSame tells whether two versions of a Node are the same to a Plan. The kubelet writes its
// Node every few minutes.
func isSame(before, now *corev1.Node) bool {
	a, b := nodesOf([]*corev1.Node{before})[0], nodesOf([]*corev1.Node{now})[0]
	return a.version == b.version && a.architecture == b.architecture && a.ready == b.ready && a.report == b.report &&
		a.unschedulable == b.unschedulable && a.cordonedBy == b.cordonedBy && labels.Equals(a.labels, b.labels)
}
