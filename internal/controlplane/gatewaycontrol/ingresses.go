package gatewaycontrol

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// maxCleared bounds the memory for Ingresses that kedge no longer serves.
const maxCleared = 10_000

// statuses is what a term knows of the statuses of Ingresses.
type statuses struct {
	// addresses are the last ones that the shared front had.
	addresses []netv1.IngressLoadBalancerIngress
	// served are the Ingresses that kedge serves, or has served until their status is clear.
	served map[types.UID]bool
	// cleared are those whose status kedge has cleared: maxCleared of them.
	cleared map[types.UID]bool
}

// syncIngresses writes the addresses of the shared front into the statuses of the Ingresses
// that kedge serves.
func (t *term) syncIngresses(ctx context.Context, newest *compiled, failed func(error)) {
	shared := t.sharedService()
	served := map[types.UID]bool{}
	for _, object := range sorted(newest.ingresses.Served) {
		served[object.UID] = true
		if ctx.Err() != nil {
			return
		}
		var wanted []netv1.IngressLoadBalancerIngress
		if newest.ingresses.Served[object] {
			wanted = addressesFor(object, shared)
		}
		if !equality.Semantic.DeepEqual(object.Status.LoadBalancer.Ingress, wanted) {
			failed(t.writeIngress(ctx, object, wanted))
		}
	}
	for object := range newest.ingresses.Left {
		if t.ingresses.served[object.UID] && !t.ingresses.cleared[object.UID] {
			served[object.UID] = true // it was not possible to clear it
		}
	}
	t.ingresses.served = served
}

// clearIngresses takes the addresses of the shared front from the statuses of Ingresses that
// kedge no longer serves. It does so once for each: if another controller gives an Ingress the
// same addresses, these are that controller's.
func (t *term) clearIngresses(ctx context.Context, newest *compiled, failed func(error)) {
	if addresses := t.sharedAddresses(); len(addresses) > 0 {
		t.ingresses.addresses = addresses
	}
	if len(t.ingresses.cleared) > maxCleared || t.ingresses.cleared == nil {
		t.ingresses.cleared = map[types.UID]bool{}
	}
	for object := range newest.ingresses.Served {
		delete(t.ingresses.cleared, object.UID)
	}
	for _, object := range sorted(newest.ingresses.Left) {
		if ctx.Err() != nil {
			return
		}
		if t.ingresses.cleared[object.UID] || !t.ingresses.served[object.UID] && !newest.ingresses.Left[object] ||
			len(t.ingresses.addresses) == 0 || !equality.Semantic.DeepEqual(object.Status.LoadBalancer.Ingress, t.ingresses.addresses) {
			continue
		}
		err := t.writeIngress(ctx, object, nil)
		failed(err)
		if err == nil {
			t.ingresses.cleared[object.UID] = true
		}
	}
}

// sharedAddresses returns the addresses of the shared front.
func (t *term) sharedAddresses() []netv1.IngressLoadBalancerIngress {
	return addressesOf(t.sharedService(), nil)
}

// sharedService returns the Service of the shared front, or nil.
func (t *term) sharedService() *corev1.Service {
	service, err := t.services.Services(front.Shared.Namespace).Get(front.Shared.Name)
	if err != nil || !front.IsFront(service) { // there is none
		return nil
	}
	return service
}

// portsOf returns the ports of the shared front that an Ingress needs.
func portsOf(object *netv1.Ingress) []corev1.ServicePort {
	ports := []corev1.ServicePort{{Port: front.PlainPort}}
	if len(object.Spec.TLS) > 0 {
		ports = append(ports, corev1.ServicePort{Port: front.SecurePort})
	}
	return ports
}

// addressesFor returns the addresses that serve a port of an Ingress.
func addressesFor(object *netv1.Ingress, shared *corev1.Service) []netv1.IngressLoadBalancerIngress {
	return addressesOf(shared, portsOf(object))
}

// unreachable says which ports of Ingresses no address serves, and why. The Service of the front
// has an Event of its own, which the users of Ingresses cannot see.
func (t *term) unreachable(newest *compiled) (faults []fault) {
	shared := t.sharedService()
	if shared == nil {
		return nil
	}
	condition := meta.FindStatusCondition(shared.Status.Conditions, servicelb.Condition)
	if condition == nil || condition.Message == "" || condition.Reason == servicelb.Waiting {
		return nil
	}
	for object, isServed := range newest.ingresses.Served {
		for _, port := range portsOf(object) {
			if isServed && servicelb.IsAbout(condition.Message, &port) && len(addressesOf(shared, []corev1.ServicePort{port})) == 0 {
				faults = append(faults, fault{object, condition.Reason, fmt.Sprintf("No address serves port %d of the Ingress: %s", port.Port, condition.Message)})
			}
		}
	}
	return faults
}

// sorted returns Ingresses in the order of their names.
func sorted(objects map[*netv1.Ingress]bool) []*netv1.Ingress {
	return slices.SortedFunc(maps.Keys(objects), func(a, b *netv1.Ingress) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (t *term) writeIngress(ctx context.Context, object *netv1.Ingress, addresses []netv1.IngressLoadBalancerIngress) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": object.UID, "resourceVersion": object.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": addresses}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = t.api.NetworkingV1().Ingresses(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of Ingress %s/%s: %w", object.Namespace, object.Name, err)
	}
	return nil
}

// addressesOf returns the addresses of a Service as those of an Ingress, if they serve one of the
// ports. No ports mean any.
func addressesOf(service *corev1.Service, ports []corev1.ServicePort) []netv1.IngressLoadBalancerIngress {
	if service == nil {
		return nil
	}
	var addresses []netv1.IngressLoadBalancerIngress
	for i := range service.Status.LoadBalancer.Ingress {
		one := &service.Status.LoadBalancer.Ingress[i]
		if len(ports) == 0 || slices.ContainsFunc(ports, func(port corev1.ServicePort) bool { return servicelb.Serves(one, &port) }) {
			addresses = append(addresses, netv1.IngressLoadBalancerIngress{IP: one.IP, Hostname: one.Hostname})
		}
	}
	return addresses
}
