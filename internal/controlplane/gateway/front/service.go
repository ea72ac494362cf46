package front

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

const (
	// Label is on each Service that is a front. Its value is the name of the Service, so that a
	// copy of the Service under another name is not taken for a front.
	Label = "gateway.kedge.dev/front"
	// PolicyAnnotation chooses the externalTrafficPolicy of a front. Its values are those of the
	// field. A Gateway has it in spec.infrastructure.annotations.
	PolicyAnnotation = "gateway.kedge.dev/external-traffic-policy"

	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "kedge"
)

// Service returns the Service that a front wants. Its ports have no node ports yet: see
// WithNodePorts.
func Service(f Front) *corev1.Service {
	both := corev1.IPFamilyPolicyPreferDualStack
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Name.Namespace, Name: f.Name.Name,
			Labels:      labelsOf(f),
			Annotations: maps.Clone(f.Annotations),
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			IPFamilyPolicy:        &both,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		},
	}
	if f.Annotations[PolicyAnnotation] == string(corev1.ServiceExternalTrafficPolicyCluster) {
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if len(f.Addresses) > 0 {
		if service.Annotations == nil {
			service.Annotations = map[string]string{}
		}
		service.Annotations[servicelb.AddressAnnotation] = strings.Join(f.Addresses, ",")
	}
	if f.Gateway != nil {
		owned := true
		service.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: gwv1.GroupVersion.String(), Kind: "Gateway", Name: f.Gateway.Name, UID: f.Gateway.UID, Controller: &owned,
		}}
	}
	for _, port := range f.Ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: PortName(port), Protocol: protocolOf(port.Transport), Port: int32(port.Number),
			TargetPort: intstr.FromInt32(int32(port.Number)),
		})
	}
	return service
}

// labelsOf returns the labels of the Service of a front. The user's do not replace kedge's.
func labelsOf(f Front) map[string]string {
	all := maps.Clone(f.Labels)
	if all == nil {
		all = map[string]string{}
	}
	all[Label] = f.Name.Name
	all[managedByLabel] = managedBy
	return all
}

// PortName returns the name that a port has in the Service of its front.
func PortName(port Port) string { return fmt.Sprintf("%s-%d", port.Transport, port.Number) }

func protocolOf(transport routing.Transport) corev1.Protocol {
	if transport == routing.UDP {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

// WithNodePorts returns desired with the node ports that the API server has given to current.
// They are also the target ports: what the nodes listen on. A port without a node port stays
// as it is.
func WithNodePorts(desired, current *corev1.Service) *corev1.Service {
	desired = desired.DeepCopy()
	for i := range desired.Spec.Ports {
		port := &desired.Spec.Ports[i]
		for _, given := range current.Spec.Ports {
			if given.Port == port.Port && given.Protocol == port.Protocol && given.NodePort != 0 {
				port.NodePort, port.TargetPort = given.NodePort, intstr.FromInt32(given.NodePort)
			}
		}
	}
	return desired
}

// IsFront tells whether kedge has made a Service as a front.
func IsFront(service *corev1.Service) bool {
	if service.Labels[Label] != service.Name || service.Labels[managedByLabel] != managedBy {
		return false
	}
	if service.Namespace == Shared.Namespace && service.Name == Shared.Name {
		return true
	}
	owner := metav1.GetControllerOf(service)
	return owner != nil && owner.Kind == "Gateway" && strings.HasPrefix(owner.APIVersion, gwv1.GroupName+"/")
}

// Matches tells whether a Service is as desired. It may have more labels and annotations.
func Matches(current, desired *corev1.Service) bool {
	wanted := metav1.GetControllerOf(desired)
	owner := metav1.GetControllerOf(current)
	return contains(current.Labels, desired.Labels) && contains(current.Annotations, desired.Annotations) &&
		(wanted == nil || owner != nil && owner.UID == wanted.UID) &&
		current.Spec.Type == desired.Spec.Type &&
		current.Spec.ExternalTrafficPolicy == desired.Spec.ExternalTrafficPolicy &&
		len(current.Spec.Selector) == 0 &&
		slices.EqualFunc(sorted(current), sorted(desired), func(a, b corev1.ServicePort) bool {
			return a.Name == b.Name && a.Port == b.Port && a.Protocol == b.Protocol && a.TargetPort == b.TargetPort &&
				(b.NodePort == 0 || a.NodePort == b.NodePort)
		})
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if found, is := all[key]; !is || found != value {
			return false
		}
	}
	return true
}

func sorted(service *corev1.Service) []corev1.ServicePort {
	return slices.SortedFunc(slices.Values(service.Spec.Ports), func(a, b corev1.ServicePort) int { return strings.Compare(a.Name, b.Name) })
}
