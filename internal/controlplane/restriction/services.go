package restriction

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// checkService keeps a Service from taking an address that belongs to somebody else as its
// external address or load balancer address. The service proxies of all nodes would send the
// connections to that address to the Service's pods: those of pods, and those of the nodes
// themselves. So a user who writes Services in one namespace could answer for the cluster's DNS,
// or take the API away from all agents. Of two Services with one address and port, either may get
// it (ensureElem in pkg/proxy/nftables/proxier.go).
//
// Controllers that may write the status of all Services, such as load balancers, may write
// addresses of nodes there.
//
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go nftElementStorage.ensureElem
func (p *plugin) checkService(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	external, balanced, err := foreignAddresses(a.GetObject(), o)
	if err != nil {
		return err
	}
	if old := a.GetOldObject(); old != nil && len(external)+len(balanced) > 0 {
		externalBefore, balancedBefore, err := foreignAddresses(old, o)
		if err != nil {
			return err
		}
		external, balanced = without(external, externalBefore), without(balanced, balancedBefore)
	}
	if len(external)+len(balanced) == 0 {
		return nil
	}
	if err := p.checkRanges(ctx, a, slices.Concat(external, balanced)); err != nil {
		return err
	}
	if len(balanced) > 0 {
		balances, err := p.balances(ctx, a.GetUserInfo())
		if err != nil {
			return err
		}
		if !balances {
			external = append(external, balanced...)
		}
	}
	return p.checkOwners(ctx, a, external)
}

// without returns the addresses that were not there before.
func without(addresses, before []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(addresses, func(address netip.Addr) bool { return slices.Contains(before, address) })
}

// balances tells whether a user gives Services their addresses: those of all namespaces.
func (p *plugin) balances(ctx context.Context, who user.Info) (bool, error) {
	for _, verb := range []string{"update", "patch"} {
		allowed, err := p.may(ctx, authorizer.AttributesRecord{User: who, Verb: verb, APIVersion: "v1", Resource: "services", Subresource: "status", ResourceRequest: true})
		if err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

// checkRanges refuses addresses in the ranges of Services.
func (p *plugin) checkRanges(ctx context.Context, a admission.Attributes, claimed []netip.Addr) error {
	ranges, err := p.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ranges of Services: %w", err)
	}
	for _, r := range ranges.Items {
		for _, cidr := range r.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil {
				return fmt.Errorf("read ServiceCIDR %s: %w", r.Name, err)
			}
			for _, address := range claimed {
				if prefix.Contains(address) {
					return admission.NewForbidden(a, fmt.Errorf("the address %s is in %s, the cluster's range of Service addresses: "+
						"external addresses and load balancer addresses must be outside of it", address, prefix))
				}
			}
		}
	}
	return nil
}

// checkOwners refuses addresses that belong to hosts of the cluster, to pods, to pools, or to no
// network.
func (p *plugin) checkOwners(ctx context.Context, a admission.Attributes, claimed []netip.Addr) error {
	if len(claimed) == 0 {
		return nil
	}
	hosts, err := p.hosts(ctx)
	if err != nil {
		return err
	}
	pools, err := p.pools(ctx)
	if err != nil {
		return err
	}
	poolOf := loadbalancercontrol.PoolOf(pools)
	for _, address := range claimed {
		owner := cmp.Or(servicelb.Special(address), hosts[address])
		if owner == "" && slices.ContainsFunc(p.cfg.Pods, func(r netip.Prefix) bool { return r.Contains(address) }) {
			owner = "in the range of the addresses of pods"
		}
		if pool := poolOf(address); owner == "" && pool != "" {
			owner = "an address of LoadBalancerPool " + pool
		}
		if owner != "" {
			return admission.NewForbidden(a, fmt.Errorf("the address %s is %s, so it cannot be an external address of a Service: "+
				"all nodes and pods would send what is for its owner to the Service. Remove it from externalIPs and set type: LoadBalancer, "+
				"with which the Service gets addresses of nodes or of a LoadBalancerPool", address, owner))
		}
	}
	return nil
}

// hosts returns the addresses of nodes, of API servers and of the control plane, each with a text that
// names its owner.
func (p *plugin) hosts(ctx context.Context) (map[netip.Addr]string, error) {
	owners := map[netip.Addr]string{}
	if p.cfg.VIP.IsValid() {
		owners[p.cfg.VIP] = "the address of the control plane"
	}
	endpoints, err := p.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("list API servers: %w", err)
	}
	for i := range endpoints.Items {
		for _, address := range servers.IPs(&endpoints.Items[i]) {
			owners[address] = "the address of an API server"
		}
	}
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, address := range nodeobject.Addresses(&nodes.Items[i]) {
			owners[address] = "an address of node " + nodes.Items[i].Name
		}
	}
	return owners, nil
}

// pools returns the LoadBalancerPools. There are none if the cluster does not have the kind.
func (p *plugin) pools(ctx context.Context) (pools []*unstructured.Unstructured, err error) {
	list, err := p.custom.Resource(loadbalancercontrol.PoolResource).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list LoadBalancerPools: %w", err)
	}
	if err == nil {
		for i := range list.Items {
			pools = append(pools, &list.Items[i])
		}
	}
	return pools, nil
}

// foreignAddresses returns the addresses of a Service that the cluster has not assigned: its external
// ones, and those of its load balancer.
func foreignAddresses(object runtime.Object, o admission.ObjectInterfaces) (external, balanced []netip.Addr, err error) {
	service, err := versioned[*corev1.Service](object, o, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, nil, err
	}
	external, balanced = servicelb.Foreign(service)
	return external, balanced, nil
}
