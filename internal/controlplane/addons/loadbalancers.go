package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// clearLoadBalancers removes what the part servicelb has left when it was disabled: the
// addresses in the status of Services, the nodes' reports about ports, and the Leases of
// addresses. Addresses that another load balancer has written stay.
func (a *Addons) clearLoadBalancers(ctx context.Context) error {
	var faults []error
	services := a.client.Resource(corev1.SchemeGroupVersion.WithResource("services"))
	found, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for _, service := range found.Items {
		conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
		kept := slices.DeleteFunc(slices.Clone(conditions), func(condition any) bool {
			one, is := condition.(map[string]any)
			return is && one["type"] == servicelb.Condition
		})
		if len(kept) == len(conditions) {
			continue
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": service.GetResourceVersion()},
			"status":   map[string]any{"loadBalancer": map[string]any{"ingress": nil}, "conditions": kept},
		})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		_, err = services.Namespace(service.GetNamespace()).Patch(ctx, service.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			faults = append(faults, fmt.Errorf("clear status of Service %s/%s: %w", service.GetNamespace(), service.GetName(), err))
		}
	}
	return errors.Join(append(faults, a.clearNodes(ctx, servicelb.PortsAnnotation), a.clearLeases(ctx))...)
}

// clearNodes removes an annotation, which a part of kedge on the nodes has set, from all nodes.
func (a *Addons) clearNodes(ctx context.Context, annotation string) error {
	var faults []error
	nodes := a.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	found, err := nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range found.Items {
		if _, reported := node.GetAnnotations()[annotation]; !reported {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: null}}}`, annotation)
		_, err := nodes.Patch(ctx, node.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			faults = append(faults, fmt.Errorf("clear annotation of node %s: %w", node.GetName(), err))
		}
	}
	return errors.Join(faults...)
}

func (a *Addons) clearLeases(ctx context.Context) error {
	leases := a.client.Resource(coordinationv1.SchemeGroupVersion.WithResource("leases")).Namespace(servicelb.Namespace)
	if err := leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: servicelb.LeaseLabel}); err != nil {
		return fmt.Errorf("delete Leases of addresses: %w", err)
	}
	return nil
}
