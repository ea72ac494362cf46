// Package servicelb has what the parts that serve Services of type LoadBalancer agree on:
// names, and which Services are kedge's. The controller on a server, its counterpart on
// each node, and the admission plugin use it.
package servicelb

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

const (
	// Class is the loadBalancerClass of Services that kedge serves. It also serves those
	// without a class.
	Class = "kedge.dev/loadbalancer"
	// PoolClass is the loadBalancerClass of Services that take an address of any pool.
	PoolClass = "kedge.dev/pool"
	// PoolAnnotation is on a Service, and names the pool that its addresses come from.
	PoolAnnotation = "kedge.dev/pool"
	// AddressAnnotation is on a Service, and has the addresses of pools that it wants,
	// separated by commas. It replaces the deprecated field spec.loadBalancerIP.
	AddressAnnotation = "kedge.dev/load-balancer-ip"

	// ShareAnnotation is on Services that may have one address of a pool together. It has the same
	// value on all of them. The other two are MetalLB's, the last one by its old name.
	ShareAnnotation           = "kedge.dev/allow-shared-ip"
	MetalLBShareAnnotation    = "metallb.io/allow-shared-ip"
	OldMetalLBShareAnnotation = "metallb.universe.tf/allow-shared-ip"
	// ShareNamespacesAnnotation is on the oldest of these Services, and names other namespaces whose
	// Services may have its address too, separated by commas.
	ShareNamespacesAnnotation = "kedge.dev/allow-shared-ip-namespaces"

	// EnableLabel and PoolLabel are k3s's. As soon as one node has EnableLabel, only nodes
	// for which it is "true" are used. Then a Service with PoolLabel gets only nodes that
	// have PoolLabel with the same value.
	EnableLabel = "svccontroller.k3s.cattle.io/enablelb"
	PoolLabel   = "svccontroller.k3s.cattle.io/lbpool"
	// PoolsPrefix and the name of a pool are a label of nodes. If it is "true", the node is in that pool, besides that of
	// PoolLabel.
	PoolsPrefix = "lbpool.svccontroller.k3s.cattle.io/"
	// RestrictedEnableLabel, RestrictedPoolLabel and RestrictedPoolsPrefix are for labels of nodes that mean the same. A
	// node can give itself those of k3s when it registers, and never these (upstream's
	// NodeRestriction). As soon as one node has RestrictedEnableLabel, those of k3s on nodes
	// do not count.
	RestrictedEnableLabel = "node-restriction.kubernetes.io/enablelb"
	RestrictedPoolLabel   = "node-restriction.kubernetes.io/lbpool"
	RestrictedPoolsPrefix = "lbpool.node-restriction.kubernetes.io/"

	// PortsAnnotation is on a Node. The node says in it which ports of Services are free on
	// its addresses: see Ports.
	PortsAnnotation = "loadbalancer.kedge.dev/ports"
	// Condition is the type of the condition of a Service that tells whether the Service has
	// addresses, and marks these as kedge's.
	Condition = "kedge.dev/LoadBalancer"
	// Waiting is the reason of the condition while nodes have yet to say whether ports are free.
	Waiting = "WaitingForNodes"
	// ExternalCondition is the type of the condition of a Service that is False if one of its
	// externalIPs belongs to somebody else. Then nodes serve none of them.
	ExternalCondition = "kedge.dev/ExternalIPs"

	// User is the user of the component on nodes.
	User = "system:kedge:loadbalancer"

	// Namespace has the Leases of addresses.
	Namespace = "kube-system"
	// LeaseLabel marks the Leases of addresses of pools. Its value is empty.
	LeaseLabel = "loadbalancer.kedge.dev/address"
	// AddressOfLease and NodesOfLease are annotations of such a Lease: the address, and the
	// nodes that may hold it, separated by commas.
	AddressOfLease = "loadbalancer.kedge.dev/address"
	NodesOfLease   = "loadbalancer.kedge.dev/nodes"
)

// IsOurs tells whether kedge serves a Service.
func IsOurs(service *corev1.Service) bool {
	class := service.Spec.LoadBalancerClass
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == Class || *class == PoolClass)
}

// IsMarked tells whether the addresses in the status of a Service are kedge's.
func IsMarked(service *corev1.Service) bool {
	return meta.FindStatusCondition(service.Status.Conditions, Condition) != nil
}

// Choice says which labels of nodes decide whether Services get addresses of a node. Without any,
// all nodes serve.
type Choice struct{ enable, pool, pools string }

// ChoiceOf returns the choice of a cluster, whose nodes have these labels.
func ChoiceOf(nodes iter.Seq[map[string]string]) (c Choice) {
	for labels := range nodes {
		if _, has := labels[RestrictedEnableLabel]; has {
			return Choice{RestrictedEnableLabel, RestrictedPoolLabel, RestrictedPoolsPrefix}
		}
		if _, has := labels[EnableLabel]; has {
			c = Choice{EnableLabel, PoolLabel, PoolsPrefix}
		}
	}
	return c
}

// Allows tells whether a Service may have addresses of a node, by the labels of both: k3s's rules.
// A node that upstream's label excludes serves nothing.
func (c Choice) Allows(node, service map[string]string) bool {
	if _, excluded := node[corev1.LabelNodeExcludeBalancers]; excluded {
		return false
	}
	if c.enable == "" {
		return true
	}
	pool := service[PoolLabel]
	return node[c.enable] == "true" && (pool == "" || node[c.pool] == pool || node[c.pools+pool] == "true")
}

// Ports are the ports of Services that a node has looked at, as Port writes them. The
// value names the process that has the port. It is empty if the port is free.
type Ports map[string]string

// Port writes a port of a Service as NUMBER/PROTOCOL.
func Port(port *corev1.ServicePort) string {
	protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
	return fmt.Sprintf("%d/%s", port.Port, strings.ToLower(string(protocol)))
}

// NotServed is the error of a port in the status of a Service, at an address that does not serve
// the port.
const NotServed = "kedge.dev/NotServed"

// Serves tells whether an address in the status of a Service serves a port.
func Serves(address *corev1.LoadBalancerIngress, port *corev1.ServicePort) bool {
	return !slices.ContainsFunc(address.Ports, func(status corev1.PortStatus) bool {
		return status.Error != nil && status.Port == port.Port && status.Protocol == cmp.Or(port.Protocol, corev1.ProtocolTCP)
	})
}

// portInMessage finds the ports in the message of a condition.
var portInMessage = regexp.MustCompile(`port [0-9]+/[a-z]+ `)

// IsAbout tells whether the message of a Service's condition explains why no address serves a port. A
// message that names ports explains only these.
func IsAbout(message string, port *corev1.ServicePort) bool {
	named := portInMessage.FindAllString(message, -1)
	return message != "" && (len(named) == 0 || slices.Contains(named, "port "+Port(port)+" "))
}

// LeaseName returns the name of the Lease of an address.
func LeaseName(address netip.Addr) string {
	return "kedge-address-" + strings.ReplaceAll(address.StringExpanded(), ":", "-")
}

// MayHold tells whether a node may hold the address of a Lease with these annotations.
func MayHold(annotations map[string]string, node string) bool {
	return node != "" && slices.Contains(strings.Split(annotations[NodesOfLease], ","), node)
}
