package addons

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// TestClearLoadBalancers has a Service with kedge's addresses, and one with those of
// another load balancer.
func TestClearLoadBalancers(t *testing.T) {
	service := func(name string, conditions ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		for _, condition := range conditions {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: condition})
		}
		return s
	}
	reported := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"x": "y", servicelb.PortsAnnotation: "{}"}}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kedge-address-x", Labels: map[string]string{servicelb.LeaseLabel: ""}}}
	client := fake.NewSimpleDynamicClient(scheme.Scheme, service("ours", "x", servicelb.Condition), service("theirs", "x"), reported, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, lease)
	a := &Addons{client: client}
	if err := a.clearLoadBalancers(t.Context()); err != nil {
		t.Fatal(err)
	}
	find := func(kind, namespace, name string, into runtime.Object) {
		t.Helper()
		found, err := client.Resource(corev1.SchemeGroupVersion.WithResource(kind)).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var ours, theirs corev1.Service
	find("services", "ns", "ours", &ours)
	find("services", "ns", "theirs", &theirs)
	if len(ours.Status.LoadBalancer.Ingress) > 0 || len(ours.Status.Conditions) != 1 {
		t.Errorf("the Service has %+v", ours.Status)
	}
	if len(theirs.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service of another load balancer has %+v", theirs.Status)
	}
	var node corev1.Node
	find("nodes", "", "a", &node)
	if len(node.Annotations) != 1 {
		t.Errorf("the node has %v", node.Annotations)
	}
	deleted := false
	for _, action := range client.Actions() {
		if collection, is := action.(clienttesting.DeleteCollectionAction); is {
			deleted = strings.HasPrefix(collection.GetListRestrictions().Labels.String(), servicelb.LeaseLabel) && collection.GetNamespace() == "kube-system"
		} else if action.GetVerb() == "patch" && strings.Contains(action.(clienttesting.PatchAction).GetName(), "theirs") {
			t.Error("the Service of another load balancer was written")
		}
	}
	if !deleted {
		t.Error("the Leases of addresses stay")
	}
}
