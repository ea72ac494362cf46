package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

func TestOwnAddresses(t *testing.T) {
	service := func(mode corev1.LoadBalancerIPMode, marked bool, addresses ...string) *corev1.Service {
		s := &corev1.Service{}
		for _, address := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address, IPMode: &mode})
		}
		if marked {
			s.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition}}
		}
		return s
	}
	const vip, proxy = corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	o := ownAddresses{
		own:      []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")},
		external: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
	}
	for name, test := range map[string]struct {
		service *corev1.Service
		want    string
	}{
		"its own and another's": {service(proxy, true, "192.0.2.2", "192.0.2.1"), "192.0.2.1 VIP,192.0.2.2 Proxy,"},
		"only another's":        {service(proxy, true, "192.0.2.2"), "192.0.2.2 Proxy,"},
		"its external address":  {service(proxy, true, "203.0.113.1"), "203.0.113.1 VIP,192.0.2.1 VIP,"},
		"the other family":      {service(proxy, true, "fd00::1"), "fd00::1 VIP,"},
		"of a pool":             {service(vip, true, "192.0.2.100"), "192.0.2.100 VIP,"},
		"of another balancer":   {service(proxy, false, "192.0.2.1"), "192.0.2.1 Proxy,"},
		"none":                  {service(proxy, true), ""},
	} {
		before := test.service.DeepCopy()
		got := ""
		for _, ingress := range o.adopt(test.service).Status.LoadBalancer.Ingress {
			got += fmt.Sprintf("%s %s,", ingress.IP, *ingress.IPMode)
		}
		if got != test.want {
			t.Errorf("%s: %s", name, got)
		}
		if fmt.Sprint(before) != fmt.Sprint(test.service) {
			t.Errorf("%s: the object of the cache has changed", name)
		}
	}
	if o.adopt(nil) != nil {
		t.Error("nothing became something")
	}
}
