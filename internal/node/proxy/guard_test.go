package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	watch "k8s.io/kubernetes/pkg/proxy/config"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// proxier notes what it is told of Services. As upstream's, it must be told the Service as it was told
// before.
type proxier struct {
	watch.ServiceHandler
	*testing.T
	known map[string]string
}

func describe(s *corev1.Service) string {
	text := strings.Join(s.Spec.ExternalIPs, " ")
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		text += " lb " + ingress.IP
	}
	return strings.TrimSpace(text)
}

func (p *proxier) OnServiceAdd(s *corev1.Service) { p.known[s.Name] = describe(s) }

func (p *proxier) OnServiceUpdate(before, s *corev1.Service) {
	if p.known[s.Name] != describe(before) {
		p.Errorf("%s was %q, and is said to have been %q", s.Name, p.known[s.Name], describe(before))
	}
	p.known[s.Name] = describe(s)
}

func (p *proxier) OnServiceDelete(s *corev1.Service) {
	if p.known[s.Name] != describe(s) {
		p.Errorf("%s was %q, and is said to have been %q", s.Name, p.known[s.Name], describe(s))
	}
	delete(p.known, s.Name)
}

// fixed are servers that do not change.
type fixed []string

func (f fixed) Servers() ([]string, <-chan struct{}) { return f, nil }

func TestGuard(t *testing.T) {
	p := &proxier{T: t, known: map[string]string{}}
	g := newGuard(p, Config{
		NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.2")},
		Servers: fixed{"192.0.2.1:6443", "[2001:db8::1]:6443", "k8s.example:6443"},
	})
	external := func(addresses ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{ExternalIPs: addresses}}
	}
	balanced := func(mode corev1.LoadBalancerIPMode, addresses ...string) *corev1.Service {
		s := external()
		for _, address := range addresses {
			one := corev1.LoadBalancerIngress{IP: address}
			if mode != "" {
				one.IPMode = &mode
			}
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, one)
		}
		return s
	}
	marked := external("198.51.100.1", "198.51.100.2")
	marked.Status.Conditions = []metav1.Condition{{Type: servicelb.ExternalCondition, Status: metav1.ConditionFalse}}
	var before *corev1.Service
	for _, test := range []struct {
		name    string
		service *corev1.Service
		want    string
	}{
		{"none", external(), ""},
		{"somebody else's", external("198.51.100.1", "2001:db8::9"), "198.51.100.1 2001:db8::9"},
		{"a server's", external("192.0.2.1", "198.51.100.1"), "198.51.100.1"},
		{"a server's, written otherwise", external("::ffff:192.0.2.1", "192.000.002.001", "2001:0db8::1"), ""},
		{"its own", external("192.0.2.2", "203.0.113.2"), ""},
		{"special ones", external("127.0.0.1", "169.254.169.254", "::1", "168.63.129.16"), ""},
		{"marked", marked, ""},
		{"no longer marked", external("198.51.100.1", "198.51.100.2"), "198.51.100.1 198.51.100.2"},
		{"a load balancer's", balanced("", "198.51.100.1"), "lb 198.51.100.1"},
		{"a server's as a load balancer's", balanced("", "192.0.2.1", "198.51.100.1"), "lb 198.51.100.1"},
		{"a server's as a load balancer's of the mode VIP", balanced(corev1.LoadBalancerIPModeVIP, "192.0.2.1"), ""},
		{"a server's as kedge's load balancer gives it", balanced(corev1.LoadBalancerIPModeProxy, "192.0.2.1"), "lb 192.0.2.1"},
		{"its own as a load balancer's", balanced("", "192.0.2.2"), "lb 192.0.2.2"},
		{"loopback as a load balancer's", balanced("", "127.0.0.1"), ""},
	} {
		copied := test.service.DeepCopy()
		if before == nil {
			g.OnServiceAdd(test.service)
		} else {
			g.OnServiceUpdate(before, test.service)
		}
		if got := p.known["s"]; got != test.want {
			t.Errorf("%s: the proxier has %q, want %q", test.name, got, test.want)
		}
		if fmt.Sprint(copied) != fmt.Sprint(test.service) {
			t.Errorf("%s: the object of the cache has changed", test.name)
		}
		before = test.service
	}

	// A server that comes later, and one that goes.
	later := external("192.0.2.9", "192.0.2.1")
	g.OnServiceUpdate(before, later)
	g.learn([]netip.Addr{netip.MustParseAddr("192.0.2.9")})
	if got := p.known["s"]; got != "192.0.2.1" {
		t.Errorf("with other servers the proxier has %q", got)
	}
	g.OnServiceDelete(later)
	g.learn(nil)
	if len(p.known)+len(g.seen) != 0 {
		t.Errorf("a deleted Service is still known: %v %v", p.known, g.seen)
	}
	if got := resolve(t.Context(), []string{"[2001:db8::1]:6443", "192.0.2.1:6443", "192.0.2.1:6444", "[::ffff:192.0.2.1]:6443", "nonsense", "host.invalid:port"}); fmt.Sprint(got) != "[192.0.2.1:6443 192.0.2.1:6444 [2001:db8::1]:6443]" {
		t.Errorf("got %v", got)
	}
}
