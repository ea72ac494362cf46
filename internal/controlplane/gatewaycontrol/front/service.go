package front

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

const (
	// Label is on each Service that is a front.
	Label = gateways.FrontLabel
	// PolicyAnnotation chooses the externalTrafficPolicy of a front. Its values are those of the
	// field. A Gateway has it in spec.infrastructure.annotations.
	PolicyAnnotation = "gateway.kedge.dev/external-traffic-policy"

	// copiedAnnotation has the keys of the labels and annotations that kedge has set.
	copiedAnnotation = "gateway.kedge.dev/copied"

	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "kedge"
)

// Service returns the Service that a front wants. Its ports have no node ports yet: see
// Update.
func Service(f Front) *corev1.Service {
	both := corev1.IPFamilyPolicyPreferDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Name.Namespace, Name: f.Name.Name,
			Labels:      union(map[string]string{Label: f.Name.Name, managedByLabel: managedBy}, f.Labels),
			Annotations: map[string]string{},
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
	maps.Copy(service.Annotations, f.Annotations)
	if len(f.Addresses) > 0 {
		service.Annotations[servicelb.AddressAnnotation] = strings.Join(f.Addresses, ",")
	}
	if f.Gateway != nil {
		service.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: gwv1.GroupVersion.String(), Kind: "Gateway", Name: f.Gateway.Name, UID: f.Gateway.UID, Controller: new(true),
		}}
	}
	for _, port := range f.Ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: PortName(port), Protocol: protocolOf(port.Transport), Port: int32(port.Number),
			TargetPort: intstr.FromInt32(int32(port.Number)),
		})
	}
	service.Annotations[copiedAnnotation] = recordOf(service)
	return service
}

// PortName returns the name that a port has in the Service of its front.
func PortName(port Port) string { return fmt.Sprintf("%s-%d", port.Transport, port.Number) }

func protocolOf(transport routing.Transport) corev1.Protocol {
	if transport == routing.UDP {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

// Update returns current with what desired has in addition, or instead. Ports keep the node
// ports that the API server has given to current. These are also the target ports: what the
// nodes listen on. Labels and annotations of others stay.
func Update(current, desired *corev1.Service) *corev1.Service {
	now := current.DeepCopy()
	for record := range strings.SplitSeq(current.Annotations[copiedAnnotation], ",") {
		if key, is := strings.CutPrefix(record, "label:"); is {
			delete(now.Labels, key)
		} else {
			delete(now.Annotations, strings.TrimPrefix(record, "annotation:"))
		}
	}
	now.Labels = union(desired.Labels, now.Labels)
	now.Annotations = union(desired.Annotations, now.Annotations)
	if len(desired.OwnerReferences) > 0 {
		now.OwnerReferences = desired.OwnerReferences
	}
	now.Spec.Type, now.Spec.ExternalTrafficPolicy, now.Spec.Selector = desired.Spec.Type, desired.Spec.ExternalTrafficPolicy, nil
	now.Spec.Ports = slices.Clone(desired.Spec.Ports)
	for i := range now.Spec.Ports {
		port := &now.Spec.Ports[i]
		for _, given := range current.Spec.Ports {
			if given.Port == port.Port && cmp.Or(given.Protocol, corev1.ProtocolTCP) == port.Protocol && given.NodePort != 0 {
				port.NodePort, port.TargetPort = given.NodePort, intstr.FromInt32(given.NodePort)
			}
		}
	}
	return now
}

// recordOf names the labels and annotations that a Gateway has given to its Service, so that
// Update can remove them when the Gateway no longer has them.
func recordOf(service *corev1.Service) string {
	var record []string
	for key := range service.Labels {
		record = append(record, "label:"+key)
	}
	for key := range service.Annotations {
		record = append(record, "annotation:"+key)
	}
	slices.Sort(record)
	return strings.Join(record, ",")
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
