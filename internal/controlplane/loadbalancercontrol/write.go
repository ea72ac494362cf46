package loadbalancercontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// ownerOfLease is the annotation of a Lease that has NAMESPACE/NAME of the Services, separated by commas.
const ownerOfLease = "loadbalancer.kedge.dev/service"

// write writes the outcome into the status of a Service, and tells of it in Events.
func (t *term) write(ctx context.Context, service *corev1.Service, o *outcome) error {
	var ingress []corev1.LoadBalancerIngress
	for _, address := range o.addresses {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: address.String(), IPMode: &o.mode, Ports: portsOf(service, o.unserved[address])})
	}
	condition := metav1.Condition{Type: servicelb.Condition, Status: metav1.ConditionTrue, Reason: reasonAssigned, ObservedGeneration: service.Generation}
	switch {
	case o.reason != "":
		condition.Reason, condition.Message = o.reason, o.message
	case o.waiting && len(ingress) == 0:
		condition.Reason, condition.Message = reasonWaiting, "The nodes have yet to say whether the ports are free"
	}
	if len(ingress) == 0 {
		condition.Status = metav1.ConditionFalse
	}
	conditions := slices.Clone(service.Status.Conditions)
	changed := meta.SetStatusCondition(&conditions, condition)
	before := addresses(service.Status.LoadBalancer.Ingress)
	now := addresses(ingress)
	if changed || !equality.Semantic.DeepEqual(service.Status.LoadBalancer.Ingress, ingress) {
		if err := patch(ctx, t.api, service, ingress, conditions); err != nil {
			return err
		}
		if before != now {
			t.events.Eventf(service, corev1.EventTypeNormal, reasonUpdated, "Updated LoadBalancer with new IPs: [%s] -> [%s]", before, now)
		}
	}
	if o.reason != "" && t.told[service.UID] != o.message {
		t.events.Event(service, corev1.EventTypeWarning, o.reason, events.Message(o.message))
	}
	t.told[service.UID] = o.message
	return nil
}

// portsOf returns what the status says about the ports of an address: nothing, unless it does not
// serve some of them. Then every port has to be there (core/v1, LoadBalancerIngress).
func portsOf(service *corev1.Service, unserved []string) (ports []corev1.PortStatus) {
	if len(unserved) == 0 {
		return nil
	}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		status := corev1.PortStatus{Port: port.Port, Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP)}
		if slices.Contains(unserved, servicelb.Port(port)) {
			status.Error = ptr.To(servicelb.NotServed)
		}
		ports = append(ports, status)
	}
	return ports
}

func addresses(ingress []corev1.LoadBalancerIngress) string {
	var texts []string
	for _, one := range ingress {
		texts = append(texts, one.IP+one.Hostname)
	}
	return strings.Join(texts, " ")
}

// clear removes what write has written from a Service that is no longer the controller's.
func (t *term) clear(ctx context.Context, service *corev1.Service) error {
	conditions := slices.Clone(service.Status.Conditions)
	meta.RemoveStatusCondition(&conditions, servicelb.Condition)
	return patch(ctx, t.api, service, nil, conditions)
}

// patch writes the status of a Service. It fails with a conflict if the Service is newer.
func patch(ctx context.Context, api kubernetes.Interface, service *corev1.Service, ingress []corev1.LoadBalancerIngress, conditions []metav1.Condition) error {
	err := sendStatus(ctx, api, service, map[string]any{"loadBalancer": map[string]any{"ingress": ingress}, "conditions": conditions})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// sendStatus changes fields of the status of a Service. It fails if the Service is newer or gone.
func sendStatus(ctx context.Context, api kubernetes.Interface, service *corev1.Service, status map[string]any) error {
	err := mergepatch.Send(ctx, api.CoreV1().Services(service.Namespace), service.Name, map[string]any{
		"metadata": map[string]any{"uid": service.UID, "resourceVersion": service.ResourceVersion}, "status": status,
	}, "status")
	if err != nil {
		return fmt.Errorf("write status of Service %s: %w", nameOf(service), err)
	}
	return nil
}

// forget drops what is known about Services that are no longer served.
func (t *term) forget(served []*corev1.Service) {
	maps.DeleteFunc(t.told, func(uid types.UID, _ string) bool {
		return !slices.ContainsFunc(served, func(service *corev1.Service) bool { return service.UID == uid })
	})
}

// readLeases returns the Leases of addresses, by address. It asks the API only if there may
// be some: nodes renew them all the time, so a cache would cost more.
func (t *term) readLeases(ctx context.Context, needed bool) (map[netip.Addr]*coordinationv1.Lease, error) {
	if !needed && !t.leased {
		return nil, nil
	}
	list, err := t.api.CoordinationV1().Leases(servicelb.Namespace).List(ctx, metav1.ListOptions{LabelSelector: servicelb.LeaseLabel})
	if err != nil {
		return nil, fmt.Errorf("list Leases of addresses: %w", err)
	}
	t.leased = len(list.Items) > 0
	leases := map[netip.Addr]*coordinationv1.Lease{}
	for i := range list.Items {
		lease := &list.Items[i]
		// The zero Addr belongs to a Lease that somebody has spoiled. It is deleted.
		address, _ := netip.ParseAddr(lease.Annotations[servicelb.AddressOfLease])
		leases[address] = lease
	}
	return leases, nil
}

// writeLeases makes, changes and deletes Leases. It returns the wanted addresses for which it has
// failed.
func (t *term) writeLeases(ctx context.Context, leases map[netip.Addr]*coordinationv1.Lease, wanted map[netip.Addr]*announced) (unleased map[netip.Addr]bool, failed error) {
	unleased = map[netip.Addr]bool{}
	client := t.api.CoordinationV1().Leases(servicelb.Namespace)
	for address, lease := range leases {
		if wanted[address] != nil {
			continue
		}
		if err := client.Delete(ctx, lease.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("delete Lease of %s: %w", address, err))
		}
	}
	for _, address := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		if err := t.writeLease(ctx, address, leases[address], wanted[address]); err != nil {
			unleased[address], failed = true, errors.Join(failed, err)
		}
	}
	return unleased, failed
}

// writeLease makes the Lease of an address, or changes the one that is there.
func (t *term) writeLease(ctx context.Context, address netip.Addr, lease *coordinationv1.Lease, want *announced) error {
	client := t.api.CoordinationV1().Leases(servicelb.Namespace)
	annotations := map[string]string{
		servicelb.AddressOfLease: address.String(),
		servicelb.NodesOfLease:   strings.Join(want.nodes, ","),
		ownerOfLease:             want.services,
	}
	if lease == nil {
		t.leased = true
		_, err := client.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: servicelb.LeaseName(address), Labels: map[string]string{servicelb.LeaseLabel: ""}, Annotations: annotations,
		}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make Lease of %s: %w", address, err)
		}
		return nil
	}
	same := true
	for key, value := range annotations {
		same = same && lease.Annotations[key] == value
	}
	if same {
		return nil
	}
	// Without the version, because the holder renews the Lease all the time.
	changes := map[string]any{"metadata": map[string]any{"uid": lease.UID, "annotations": annotations}}
	if err := mergepatch.Send(ctx, client, lease.Name, changes); err != nil {
		return fmt.Errorf("change Lease of %s: %w", address, err)
	}
	return nil
}
