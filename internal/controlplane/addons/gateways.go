package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// clearGateway removes what the part gateway has left when it was disabled: the addresses in
// the status of Ingresses and Gateways, the Services that are fronts, and the nodes' reports.
// The Services go last, because without them nobody can tell which addresses were kedge's.
func (a *Addons) clearGateway(ctx context.Context) error {
	services := a.client.Resource(corev1.SchemeGroupVersion.WithResource("services"))
	found, err := services.List(ctx, metav1.ListOptions{LabelSelector: front.Label})
	if err != nil {
		return fmt.Errorf("list Services of the gateway: %w", err)
	}
	var fronts []corev1.Service
	for _, item := range found.Items {
		var service corev1.Service
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &service); err != nil {
			return fmt.Errorf("read Service %s/%s: %w", item.GetNamespace(), item.GetName(), err)
		}
		if front.IsFront(&service) {
			fronts = append(fronts, service)
		}
	}
	if len(fronts) > 0 {
		if err := errors.Join(a.clearIngresses(ctx, fronts), a.clearGateways(ctx)); err != nil {
			return err
		}
	}
	var faults []error
	for _, service := range fronts {
		object := &unstructured.Unstructured{}
		object.SetNamespace(service.Namespace)
		object.SetName(service.Name)
		err := a.removeSlices(ctx, object)
		if err == nil {
			err = services.Namespace(service.Namespace).Delete(ctx, service.Name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			faults = append(faults, fmt.Errorf("remove Service %s/%s: %w", service.Namespace, service.Name, err))
		}
	}
	return errors.Join(append(faults, a.clearNodes(ctx, front.ListeningAnnotation))...)
}

// clearIngresses removes the addresses of the shared front from Ingresses. An Ingress with
// other addresses has them from another controller.
func (a *Addons) clearIngresses(ctx context.Context, fronts []corev1.Service) error {
	ours := map[string]bool{}
	for _, service := range fronts {
		if front.Shared.Namespace == service.Namespace && front.Shared.Name == service.Name {
			for _, address := range service.Status.LoadBalancer.Ingress {
				ours[address.IP] = true
			}
		}
	}
	resource := networkingv1.SchemeGroupVersion.WithResource("ingresses")
	found, err := a.client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Ingresses: %w", err)
	}
	var faults []error
	for _, item := range found.Items {
		var ingress networkingv1.Ingress
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &ingress); err != nil {
			return fmt.Errorf("read Ingress %s/%s: %w", item.GetNamespace(), item.GetName(), err)
		}
		addresses := ingress.Status.LoadBalancer.Ingress
		if len(addresses) == 0 || slices.ContainsFunc(addresses, func(one networkingv1.IngressLoadBalancerIngress) bool { return !ours[one.IP] }) {
			continue
		}
		faults = append(faults, a.dropStatus(ctx, resource, &item))
	}
	return errors.Join(faults...)
}

// clearGateways makes the status of kedge's Gateways that of Gateways which no controller has
// seen. The definition of the kind has that status as the default.
func (a *Addons) clearGateways(ctx context.Context) error {
	resource := gwv1.SchemeGroupVersion.WithResource("gateways")
	found, err := a.client.Resource(resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list Gateways: %w", err)
	}
	var faults []error
	for _, item := range found.Items {
		var gateway gwv1.Gateway
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &gateway); err != nil {
			return fmt.Errorf("read Gateway %s/%s: %w", item.GetNamespace(), item.GetName(), err)
		}
		programmed := meta.IsStatusConditionTrue(gateway.Status.Conditions, string(gwv1.GatewayConditionProgrammed))
		if gateway.Spec.GatewayClassName == config.GatewayClass && (programmed || len(gateway.Status.Addresses) > 0) {
			faults = append(faults, a.dropStatus(ctx, resource, &item))
		}
	}
	return errors.Join(faults...)
}

// dropStatus removes the status of an object, unless somebody has changed the object.
func (a *Addons) dropStatus(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured) error {
	patch := fmt.Appendf(nil, `{"metadata": {"resourceVersion": %q}, "status": null}`, object.GetResourceVersion())
	_, err := a.client.Resource(resource).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("clear status of %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
	}
	return nil
}
