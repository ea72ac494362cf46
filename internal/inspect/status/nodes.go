package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
)

// clusterPatience is how long the API may take to describe the cluster.
const clusterPatience = 3 * time.Second

// roleLabel is the prefix of the labels with a node's roles.
const roleLabel = "node-role.kubernetes.io/"

// ClusterOf returns a function that describes the cluster for `kedge status`. It keeps
// nothing, because the API server answers out of its own cache. Leases are in the cache
// of this process only if the controllers run here. running returns the states of all
// components. api is the name of the component that must be ready. enforced says that
// NetworkPolicies are enforced.
func ClusterOf(client *rest.Config, api string, enforced bool, running func() []component.Status) func(context.Context) *Cluster {
	return func(ctx context.Context) *Cluster {
		if !slices.ContainsFunc(running(), func(s component.Status) bool { return s.Name == api && s.State == component.Ready }) {
			return &Cluster{Fault: "the API server here is not ready, so this server knows nothing about other nodes"}
		}
		ctx, cancel := context.WithTimeout(ctx, clusterPatience)
		defer cancel()
		clients, err := kubernetes.NewForConfig(client)
		if err != nil {
			return &Cluster{Fault: err.Error()}
		}
		found, err := readCluster(ctx, clients)
		if err == nil && !enforced {
			found.Notes, err = networkNotes(ctx, clients)
		}
		if err != nil {
			return &Cluster{Fault: fmt.Sprintf("cannot read the cluster from the API: %v", err)}
		}
		return found
	}
}

func readCluster(ctx context.Context, client kubernetes.Interface) (*Cluster, error) {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	nodes, err := client.CoreV1().Nodes().List(ctx, cached)
	if err != nil {
		return nil, err
	}
	leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, cached)
	if err != nil {
		return nil, err
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, cached)
	if err != nil {
		return nil, err
	}
	endpoints, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	// There is none if a user has told the API server not to write its endpoints.
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	found := describeCluster(nodes.Items, leases.Items, volumes.Items, time.Now())
	found.Servers = servers.Addresses(endpoints, "")
	found.Gateways, err = readGateways(ctx, client, nodes.Items)
	return found, err
}

// networkNotes warns that nothing enforces the NetworkPolicies, if there are any.
func networkNotes(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	policies, err := client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	// A server of an earlier version takes this right away when it starts.
	if apierrors.IsForbidden(err) || err == nil && len(policies.Items) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("kedge does not enforce NetworkPolicies, because its settings disable network-policy, and the cluster has %d: "+
		"the traffic that they forbid is not blocked. To enforce them, remove disable-network-policy, and network-policy in disable, from the settings of all servers", len(policies.Items))}, nil
}

func describeCluster(nodes []corev1.Node, leases []coordinationv1.Lease, volumes []corev1.PersistentVolume, now time.Time) *Cluster {
	found := &Cluster{Nodes: []Node{}}
	heard := map[string]time.Time{}
	for _, lease := range leases {
		if lease.Spec.RenewTime != nil {
			heard[lease.Name] = lease.Spec.RenewTime.Time
		}
	}
	ready := map[string]bool{}
	for _, node := range nodes {
		described := describeNode(&node, heard[node.Name])
		found.Nodes = append(found.Nodes, described)
		found.Problems = append(found.Problems, nodeProblems(&node, described, now)...)
		ready[node.Name] = described.Ready
	}
	slices.SortFunc(found.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, volume := range volumes {
		if problem, is := volumeProblem(&volume, ready); is {
			found.Problems = append(found.Problems, problem)
		}
	}
	return found
}

func describeNode(node *corev1.Node, heard time.Time) Node {
	described := Node{
		Name:          node.Name,
		Unschedulable: node.Spec.Unschedulable,
		Version:       node.Status.NodeInfo.KubeletVersion,
		Heartbeat:     heard,
	}
	for label := range node.Labels {
		if role, is := strings.CutPrefix(label, roleLabel); is {
			described.Roles = append(described.Roles, role)
		}
	}
	slices.Sort(described.Roles)
	described.Address = nodeobject.InternalIP(node)
	ready := nodeobject.Ready(node)
	described.Ready = nodeobject.IsReady(node)
	if heard.Before(ready.LastHeartbeatTime.Time) {
		described.Heartbeat = ready.LastHeartbeatTime.Time
	}
	return described
}

// remedies say what a user can do about conditions of a node that are True.
var remedies = map[corev1.NodeConditionType]string{
	corev1.NodeMemoryPressure:     "the node evicts pods: give its pods memory limits, or run fewer pods",
	corev1.NodeDiskPressure:       "the node removes images and evicts pods: free space on its disk",
	corev1.NodePIDPressure:        "the node evicts pods: look for a pod that starts too many processes",
	corev1.NodeNetworkUnavailable: "run `kedge status` there, and read what the component network says",
}

func nodeProblems(node *corev1.Node, described Node, now time.Time) (problems []Problem) {
	ready := nodeobject.Ready(node)
	switch {
	case described.Ready:
	case ready.Status == "":
		problems = append(problems, Problem{
			What: fmt.Sprintf("node %s has not reported its state yet", node.Name), Do: "run `kedge status` there",
		})
	case ready.Status == corev1.ConditionUnknown:
		problems = append(problems, Problem{
			What: fmt.Sprintf("node %s does not answer; it was last heard of %s ago", node.Name, now.Sub(described.Heartbeat).Truncate(time.Second)),
			Do:   "check that the node is up, run `kedge status` there, and check that it reaches port 6443 of a server. If it is gone for good, run kubectl delete node " + node.Name,
		})
	default:
		problems = append(problems, Problem{
			What: fmt.Sprintf("node %s is not ready: %s", node.Name, ready.Message), Do: "run `kedge status` and `kedge check-config` there",
		})
	}
	for _, c := range node.Status.Conditions {
		if remedy := remedies[c.Type]; remedy != "" && c.Status == corev1.ConditionTrue {
			problems = append(problems, Problem{What: fmt.Sprintf("node %s has %s: %s", node.Name, c.Type, c.Message), Do: remedy})
		}
	}
	return problems
}

// volumeProblem describes a claim whose data are on a node that is missing or not ready.
// ready has all nodes.
func volumeProblem(volume *corev1.PersistentVolume, ready map[string]bool) (problem Problem, is bool) {
	node, ours := localstorage.NodeOf(volume)
	isReady, exists := ready[node]
	if !ours || isReady || volume.Spec.ClaimRef == nil {
		return problem, false
	}
	claim := volume.Spec.ClaimRef.Namespace + "/" + volume.Spec.ClaimRef.Name
	if exists {
		return Problem{
			What: fmt.Sprintf("the data of claim %s are on node %s, which is not ready", claim, node),
			Do:   "the data come back with the node. If the node is gone for good, run kubectl delete node " + node + ", and then kubectl delete pvc",
		}, true
	}
	return Problem{
		What: fmt.Sprintf("the data of claim %s are on node %s, which is no longer in the cluster", claim, node),
		Do:   "start kedge on that node again. To give up the data, run kubectl delete pvc and delete the pod; a StatefulSet makes new ones",
	}, true
}
