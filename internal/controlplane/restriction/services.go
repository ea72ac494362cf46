package restriction

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// checkService keeps a Service from taking the address of another Service as its external
// address or load balancer address. The service proxy has one entry per address and port,
// and either of two Services may get it (ensureElem in pkg/proxy/nftables/proxier.go). So a
// user who writes Services in one namespace could answer for the cluster's DNS or API.
//
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go nftElementStorage.ensureElem
func (p *plugin) checkService(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	claimed, err := foreignAddresses(a.GetObject(), o)
	if err != nil {
		return err
	}
	if old := a.GetOldObject(); old != nil && len(claimed) > 0 {
		before, err := foreignAddresses(old, o)
		if err != nil {
			return err
		}
		claimed = slices.DeleteFunc(claimed, func(address netip.Addr) bool { return slices.Contains(before, address) })
	}
	if len(claimed) == 0 {
		return nil
	}
	ranges, err := p.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ranges of Services: %w", err)
	}
	for _, r := range ranges.Items {
		for _, cidr := range r.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil {
				return fmt.Errorf("read ServiceCIDR %s: %w", r.Name, err)
			}
			for _, address := range claimed {
				if prefix.Contains(address) {
					return admission.NewForbidden(a, fmt.Errorf("the address %s is in %s, the cluster's range of Service addresses: "+
						"external addresses and load balancer addresses must be outside of it", address, prefix))
				}
			}
		}
	}
	return nil
}
