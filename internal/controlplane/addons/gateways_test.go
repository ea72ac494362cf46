package addons

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// TestClearGateway has two fronts with their Ingresses and Gateways, and objects of others.
func TestClearGateway(t *testing.T) {
	gateway := func(name, class string, programmed metav1.ConditionStatus) *gwv1.Gateway {
		g := &gwv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: gwv1.GatewaySpec{GatewayClassName: gwv1.ObjectName(class)}}
		g.Status.Conditions = []metav1.Condition{{Type: string(gwv1.GatewayConditionProgrammed), Status: programmed}}
		return g
	}
	own := gateway("own", "kedge", metav1.ConditionTrue)
	shared := front.Service(front.Front{Name: front.Shared})
	shared.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}}
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "theirs", Labels: map[string]string{front.Label: "kedge-gateway"}}}
	ingress := func(name string, addresses ...string) *networkingv1.Ingress {
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		for _, address := range addresses {
			i.Status.LoadBalancer.Ingress = append(i.Status.LoadBalancer.Ingress, networkingv1.IngressLoadBalancerIngress{IP: address})
		}
		return i
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{front.ListeningAnnotation: "80/tcp"}}}

	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), gwv1.Install(known)); err != nil {
		t.Fatal(err)
	}
	gateways := gwv1.SchemeGroupVersion.WithResource("gateways")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(known, map[schema.GroupVersionResource]string{gateways: "GatewayList"}, shared, theirs, node,
		front.Service(front.Front{Name: types.NamespacedName{Namespace: "ns", Name: "own-kedge"}, Gateway: own}),
		ingress("ours", "192.0.2.2"), ingress("elsewhere", "192.0.2.1", "203.0.113.1"), ingress("none"))
	// The client would guess another name for the resource.
	for _, g := range []*gwv1.Gateway{own, gateway("waiting", "kedge", metav1.ConditionUnknown), gateway("other", "traefik", metav1.ConditionTrue)} {
		if err := client.Tracker().Create(gateways, g, g.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	var did []string
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action, is := action.(interface{ GetName() string }); is {
			did = append(did, action.(clienttesting.Action).GetVerb()+" "+action.(clienttesting.Action).GetResource().Resource+"/"+action.GetName())
		}
		return false, nil, nil
	})
	if err := (&Addons{client: client}).clearGateway(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"patch ingresses/ours", "patch gateways/own", "delete services/kedge-gateway", "delete services/own-kedge", "patch nodes/a"}
	did = slices.DeleteFunc(did, func(what string) bool { return what == "delete-collection endpointslices/" })
	if !slices.Equal(did, want) {
		t.Errorf("it did %q, want %q", did, want)
	}
}
