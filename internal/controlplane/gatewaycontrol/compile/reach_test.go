package compile

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// TestPortFault has a shared front whose only address serves one of three ports. Each listener is told why
// nobody serves its own port.
func TestPortFault(t *testing.T) {
	unserved := func(port int32) corev1.PortStatus {
		return corev1.PortStatus{Port: port, Protocol: corev1.ProtocolTCP, Error: ptr.To(servicelb.NotServed)}
	}
	r := &reach{service: &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}, {Port: 5432}, {Port: 5433}}}}}
	r.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP}, unserved(5432), unserved(5433)}}}
	r.service.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition, Message: "port 5432/tcp is taken by postgres (process 7) on node a"}}
	for port, want := range map[gwv1.PortNumber]string{
		80:   "no node listens on port 80 (tcp) yet",
		5432: "no address serves port 5432 (tcp): port 5432/tcp is taken by postgres",
		5433: "no address serves port 5433 (tcp): no node listens there yet, or a pod has the host port",
	} {
		l := &listener{port: port, protocol: gwv1.TCPProtocolType, usable: true}
		if got := r.portFault([]*listener{l}); !strings.HasPrefix(got.message, want) {
			t.Errorf("port %d: %q, want %q", port, got.message, want)
		}
	}
}
