// Follows k8s.io/kubernetes v1.37.2, pkg/proxy/serviceport.go.

package restriction

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	netutils "k8s.io/utils/net"
)

// foreignAddresses returns the addresses of a Service that the cluster has not
// assigned. It reads them as the service proxy does.
//
//upstream:follows k8s.io/kubernetes/pkg/proxy/serviceport.go newBaseServiceInfo
func foreignAddresses(object runtime.Object, o admission.ObjectInterfaces) (all []netip.Addr, err error) {
	service, err := versioned[*corev1.Service](object, o, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	texts := slices.Clone(service.Spec.ExternalIPs)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		texts = append(texts, ingress.IP)
	}
	for _, text := range texts {
		if address, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text)); ok {
			all = append(all, address.Unmap())
		}
	}
	return all, nil
}
