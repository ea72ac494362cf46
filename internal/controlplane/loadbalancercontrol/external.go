package loadbalancercontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
)

// reasonRefused is the reason of the condition, and of Events, of Services whose external addresses
// belong to somebody else.
const reasonRefused = "AddressRefused"

// judge tells Services about those of their externalIPs that belong to somebody else, and marks these
// Services, so that nodes serve none of the addresses. The API refuses such addresses
// (controlplane/restriction), except if the Service is from before that rule, or older than the node
// or the pool that has the address now.
func (t *term) judge(ctx context.Context, services []*corev1.Service, w *world) error {
	servers := t.apiServers()
	var faults []error
	for _, service := range services {
		external, _ := servicelb.Foreign(service)
		var refused []string
		for _, address := range external {
			if owner := w.ownerOf(address, servers); owner != "" {
				refused = append(refused, fmt.Sprintf("%s is %s", address, owner))
			}
		}
		faults = append(faults, t.mark(ctx, service, refused))
	}
	return errors.Join(faults...)
}

// ownerOf says whose an address is: "an address of node a". It returns an empty text if a Service may
// have it as an external address. A node chooses what it says of itself, so only the addresses with
// which it is registered count.
func (w *world) ownerOf(address netip.Addr, servers []netip.Addr) string {
	if special := servicelb.Special(address); special != "" {
		return special
	}
	if address == w.vip {
		return "the address of the control plane"
	}
	if slices.Contains(servers, address) {
		return "the address of an API server"
	}
	for _, node := range w.nodes {
		if slices.Contains(node.internal, address) {
			return "an address of node " + node.name
		}
	}
	if slices.ContainsFunc(w.reserved, func(r netip.Prefix) bool { return r.Contains(address) }) {
		return "in the range of the addresses of pods or Services"
	}
	if p := poolWith(w.pools, address); p != nil {
		return "an address of LoadBalancerPool " + p.name
	}
	return ""
}

// apiServers returns the addresses of the API servers.
func (t *term) apiServers() (addresses []netip.Addr) {
	// Listing a cache does not fail.
	found, _ := t.slices.EndpointSlices(metav1.NamespaceDefault).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	for _, slice := range found {
		addresses = append(addresses, servers.IPs(slice)...)
	}
	return addresses
}

// mark writes the condition of a Service, and an Event when an address is refused.
func (t *term) mark(ctx context.Context, service *corev1.Service, refused []string) error {
	conditions := slices.Clone(service.Status.Conditions)
	var changed bool
	message := ""
	if len(refused) == 0 {
		changed = meta.RemoveStatusCondition(&conditions, servicelb.ExternalCondition)
	} else {
		message = events.Message(fmt.Sprintf("Nodes do not serve the externalIPs of the Service: %s. Remove these addresses from externalIPs and set type: LoadBalancer, "+
			"with which the Service gets addresses of nodes or of a LoadBalancerPool", strings.Join(refused, ", ")))
		changed = meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: servicelb.ExternalCondition, Status: metav1.ConditionFalse, Reason: reasonRefused, Message: message, ObservedGeneration: service.Generation,
		})
	}
	if !changed {
		return nil
	}
	err := sendStatus(ctx, t.api, service, map[string]any{"conditions": conditions})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if message != "" && err == nil {
		t.events.Event(service, corev1.EventTypeWarning, reasonRefused, message)
	}
	return nil
}

// hasExternal tells whether a Service has external addresses, or is marked for having had some.
func hasExternal(service *corev1.Service) bool {
	return len(service.Spec.ExternalIPs) > 0 || meta.FindStatusCondition(service.Status.Conditions, servicelb.ExternalCondition) != nil
}
