package loadbalancercontrol

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// joins says why a Service may not have an address, or nothing. Services share an address as with
// MetalLB: all of them have the same key, no two have the same port, and one node can announce the
// address for all. Beyond that they are of one namespace, unless the oldest of them allows others:
// otherwise, somebody could answer at the address of another tenant.
func (s *shares) joins(service *corev1.Service, address netip.Addr) string {
	holders := s.taken[address]
	if len(holders) == 0 || slices.Contains(holders, service) {
		return ""
	}
	key, owner := shareKey(service), holders[0]
	refused := fmt.Sprintf("the address %s belongs to the Service %s", address, nameOf(owner))
	if key == "" || key != shareKey(owner) {
		return fmt.Sprintf("%s. To share it, give both Services the annotation %s with one value, and different ports", refused, servicelb.ShareAnnotation)
	}
	if service.Namespace != owner.Namespace && !slices.Contains(namesIn(owner.Annotations[servicelb.ShareNamespacesAnnotation]), service.Namespace) {
		return fmt.Sprintf("%s of another namespace. To share it, that Service must have the annotation %s: %s", refused, servicelb.ShareNamespacesAnnotation, service.Namespace)
	}
	for _, holder := range holders {
		for i := range holder.Spec.Ports {
			port := servicelb.Port(&holder.Spec.Ports[i])
			if slices.ContainsFunc(service.Spec.Ports, func(own corev1.ServicePort) bool { return servicelb.Port(&own) == port }) {
				return fmt.Sprintf("port %s of the address %s belongs to the Service %s: choose another port", port, address, nameOf(holder))
			}
		}
		if !sameNodes(service, holder) {
			return fmt.Sprintf("%s. Services with externalTrafficPolicy: Local share an address only if all of them have that policy and the same selector", refused)
		}
	}
	return ""
}

// shareKey returns the value that Services with a common address have in common, or "".
func shareKey(service *corev1.Service) string {
	return cmp.Or(service.Annotations[servicelb.ShareAnnotation],
		service.Annotations[servicelb.MetalLBShareAnnotation], service.Annotations[servicelb.OldMetalLBShareAnnotation])
}

// namesIn returns names that are separated by commas.
func namesIn(text string) (names []string) {
	for name := range strings.SplitSeq(text, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	return names
}

// sameNodes tells whether two Services are served by the same nodes.
func sameNodes(a, b *corev1.Service) bool {
	local := func(s *corev1.Service) bool {
		return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	return local(a) == local(b) && (!local(a) || len(a.Spec.Selector) > 0 && maps.Equal(a.Spec.Selector, b.Spec.Selector))
}
