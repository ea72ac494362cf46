package proxy

import (
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// TestSelected checks that handlers do not receive objects that are not for kube-proxy.
func TestSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := func(name string, labels ...string) metav1.ObjectMeta {
			m := metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{}}
			for _, label := range labels {
				m.Labels[label] = ""
			}
			return m
		}
		client := fake.NewClientset(
			&corev1.Service{ObjectMeta: meta("service"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.1"}},
			&corev1.Service{ObjectMeta: meta("headless"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
			&corev1.Service{ObjectMeta: meta("others", apis.LabelServiceProxyName), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.2"}},
			&discoveryv1.EndpointSlice{ObjectMeta: meta("slice")},
			&discoveryv1.EndpointSlice{ObjectMeta: meta("headless-slice", corev1.IsHeadlessService)},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		)
		factory := informers.NewSharedInformerFactory(client, 0)
		defer factory.Shutdown()
		heard := make(chan string, 10)
		for _, informer := range []cache.SharedIndexInformer{
			selectedServices{factory.Core().V1().Services()}.Informer(),
			selectedSlices{factory.Discovery().V1().EndpointSlices()}.Informer(),
			onlyNode(factory.Core().V1().Nodes(), "a").Informer(),
		} {
			_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(object any) { heard <- "+" + object.(metav1.Object).GetName() },
				DeleteFunc: func(object any) {
					if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
						object = gone.Obj
					}
					heard <- "-" + object.(metav1.Object).GetName()
				},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		stop := make(chan struct{})
		defer close(stop)
		factory.Start(stop)
		synctest.Wait()
		// A Service that is given to another proxy counts as deleted.
		_, err := client.CoreV1().Services("default").Update(t.Context(),
			&corev1.Service{ObjectMeta: meta("service", apis.LabelServiceProxyName), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.1"}}, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var got []string
		for len(heard) > 0 {
			got = append(got, <-heard)
		}
		slices.Sort(got)
		if want := []string{"+a", "+service", "+slice", "-service"}; !slices.Equal(got, want) {
			t.Errorf("heard of %v, want %v", got, want)
		}
	})
}
