package status

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

func TestReadGateways(t *testing.T) {
	service := func(name string, status corev1.ServiceStatus) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{gateways.FrontLabel: "web-kedge"}},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
				{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(30001)},
				{Port: 443, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(30002)},
			}},
			Status: status,
		}
	}
	node := func(name, listening string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{gateways.ListeningAnnotation: listening}}}
	}
	web := service("web-kedge", corev1.ServiceStatus{
		LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "lb.example.com"}}},
		Conditions:   []metav1.Condition{{Type: servicelb.Condition, Status: metav1.ConditionFalse, Message: "port 80 is taken"}},
	})
	client := fake.NewClientset(web, service("copy", corev1.ServiceStatus{}))
	got, err := readGateways(t.Context(), client, []corev1.Node{
		node("two", "30001/tcp,30002/udp"), node("one", "30001/tcp,30002/udp"), node("half", "30001/tcp"), node("none", ""), node("strange", "x"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Gateway{{
		Name: "shop/web-kedge", Ports: []string{"80/TCP", "443/UDP"}, Addresses: []string{"192.0.2.1", "lb.example.com"},
		Nodes: []string{"one", "two"}, Fault: "port 80 is taken",
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
