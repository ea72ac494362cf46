package statuses

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	networkingv1 "k8s.io/client-go/kubernetes/typed/networking/v1"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
)

// maxCleared bounds the memory for Ingresses that kedge no longer serves.
const maxCleared = 10_000

// Ingresses writes the addresses of the shared front into the statuses of Ingresses. One goroutine
// uses it.
type Ingresses struct {
	Client networkingv1.IngressesGetter
	// addresses are the last ones that the shared front had.
	addresses []netv1.IngressLoadBalancerIngress
	// served are the Ingresses that kedge serves, or has served until their status is clear.
	served map[types.UID]bool
	// cleared are those whose status kedge has cleared: maxCleared of them.
	cleared map[types.UID]bool
}

// Write writes the addresses of the shared front into the statuses of the Ingresses that kedge
// serves. shared is the Service of the front, or nil. Write calls failed with each error, and with nil.
func (i *Ingresses) Write(ctx context.Context, r *ingress.Result, shared *corev1.Service, failed func(error)) {
	served := map[types.UID]bool{}
	for _, object := range sorted(r.Served) {
		served[object.UID] = true
		if ctx.Err() != nil {
			return
		}
		var wanted []netv1.IngressLoadBalancerIngress
		if r.Served[object] {
			wanted = addressesOf(shared, portsOf(object))
		}
		if !equality.Semantic.DeepEqual(object.Status.LoadBalancer.Ingress, wanted) {
			failed(i.write(ctx, object, wanted))
		}
	}
	for object := range r.Left {
		if i.served[object.UID] && !i.cleared[object.UID] {
			served[object.UID] = true // it was not possible to clear it
		}
	}
	i.served = served
}

// Clear takes the addresses of the shared front from the statuses of Ingresses that kedge no longer
// serves. It does so once for each: if another controller gives an Ingress the same addresses, these
// are that controller's. shared and failed are as in Write.
func (i *Ingresses) Clear(ctx context.Context, r *ingress.Result, shared *corev1.Service, failed func(error)) {
	if addresses := addressesOf(shared, nil); len(addresses) > 0 {
		i.addresses = addresses
	}
	if len(i.cleared) > maxCleared || i.cleared == nil {
		i.cleared = map[types.UID]bool{}
	}
	for object := range r.Served {
		delete(i.cleared, object.UID)
	}
	for _, object := range sorted(r.Left) {
		if ctx.Err() != nil {
			return
		}
		if i.cleared[object.UID] || !i.served[object.UID] && !r.Left[object] ||
			len(i.addresses) == 0 || !equality.Semantic.DeepEqual(object.Status.LoadBalancer.Ingress, i.addresses) {
			continue
		}
		err := i.write(ctx, object, nil)
		failed(err)
		if err == nil {
			i.cleared[object.UID] = true
		}
	}
}

// portsOf returns the ports of the shared front that an Ingress needs.
func portsOf(object *netv1.Ingress) []corev1.ServicePort {
	ports := []corev1.ServicePort{{Port: front.PlainPort}}
	if len(object.Spec.TLS) > 0 {
		ports = append(ports, corev1.ServicePort{Port: front.SecurePort})
	}
	return ports
}

// Unreachable says which ports of Ingresses no address serves, and why. The Service of the front,
// which may be nil, has an Event of its own, which the users of Ingresses cannot see.
func Unreachable(r *ingress.Result, shared *corev1.Service) (all []faults.Fault) {
	if shared == nil {
		return nil
	}
	condition := meta.FindStatusCondition(shared.Status.Conditions, servicelb.Condition)
	if condition == nil || condition.Message == "" || condition.Reason == servicelb.Waiting {
		return nil
	}
	for object, isServed := range r.Served {
		for _, port := range portsOf(object) {
			if isServed && servicelb.IsAbout(condition.Message, &port) && len(addressesOf(shared, []corev1.ServicePort{port})) == 0 {
				all = append(all, faults.Fault{
					Object: object, Reason: condition.Reason, Message: fmt.Sprintf("No address serves port %d of the Ingress: %s", port.Port, condition.Message),
				})
			}
		}
	}
	return all
}

// sorted returns Ingresses in the order of their names.
func sorted(objects map[*netv1.Ingress]bool) []*netv1.Ingress {
	return slices.SortedFunc(maps.Keys(objects), func(a, b *netv1.Ingress) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (i *Ingresses) write(ctx context.Context, object *netv1.Ingress, addresses []netv1.IngressLoadBalancerIngress) error {
	err := mergepatch.Send(ctx, i.Client.Ingresses(object.Namespace), object.Name, map[string]any{
		"metadata": map[string]any{"uid": object.UID, "resourceVersion": object.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": addresses}},
	}, "status")
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
