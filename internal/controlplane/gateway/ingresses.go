package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/controlplane/gateway/front"
)

// syncIngresses writes the addresses of the shared front into the statuses of the Ingresses
// that kedge serves.
func (t *term) syncIngresses(ctx context.Context, newest *compiled, failed func(error)) {
	var addresses []netv1.IngressLoadBalancerIngress
	if service, err := t.services.Services(front.Shared.Namespace).Get(front.Shared.Name); err == nil && front.IsFront(service) {
		addresses = addressesOf(service)
	}
	served := make([]*netv1.Ingress, 0, len(newest.ingresses.Served))
	for object := range newest.ingresses.Served {
		served = append(served, object)
	}
	slices.SortFunc(served, func(a, b *netv1.Ingress) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, object := range served {
		if ctx.Err() != nil {
			return
		}
		if !equality.Semantic.DeepEqual(object.Status.LoadBalancer.Ingress, addresses) {
			failed(t.writeIngress(ctx, object, addresses))
		}
	}
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

// addressesOf returns the addresses of a Service as those of an Ingress.
func addressesOf(service *corev1.Service) []netv1.IngressLoadBalancerIngress {
	var addresses []netv1.IngressLoadBalancerIngress
	for _, one := range service.Status.LoadBalancer.Ingress {
		addresses = append(addresses, netv1.IngressLoadBalancerIngress{IP: one.IP, Hostname: one.Hostname})
	}
	return addresses
}
