package proxy

import (
	"fmt"
	"net/netip"
	"slices"
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

// TestUnservedPorts has a Service of whose ports this node serves one.
func TestUnservedPorts(t *testing.T) {
	mode, wrong := corev1.LoadBalancerIPModeProxy, servicelb.NotServed
	status := func(address string, unserved ...int32) corev1.LoadBalancerIngress {
		one := corev1.LoadBalancerIngress{IP: address, IPMode: &mode}
		for _, port := range []int32{80, 443} {
			one.Ports = append(one.Ports, corev1.PortStatus{Port: port, Protocol: corev1.ProtocolTCP})
			if slices.Contains(unserved, port) {
				one.Ports[len(one.Ports)-1].Error = &wrong
			}
		}
		return one
	}
	o := ownAddresses{own: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for name, test := range map[string]struct {
		status []corev1.LoadBalancerIngress
		want   []int32
	}{
		"this node":    {[]corev1.LoadBalancerIngress{status("192.0.2.1", 443), status("192.0.2.2")}, []int32{80}},
		"another node": {[]corev1.LoadBalancerIngress{status("192.0.2.1"), status("192.0.2.2", 443)}, []int32{80, 443}},
	} {
		service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 443}}}}
		service.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition}}
		service.Status.LoadBalancer.Ingress = test.status
		var got []int32
		for _, port := range o.adopt(service).Spec.Ports {
			got = append(got, port.Port)
		}
		if !slices.Equal(got, test.want) || len(service.Spec.Ports) != 2 {
			t.Errorf("%s: the proxier gets the ports %v, want %v", name, got, test.want)
		}
	}
}
