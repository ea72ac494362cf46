package objectcache

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// sharingClient is a client whose Services come from a cache.
type sharingClient struct {
	kubernetes.Interface
	source Source
}

func (c sharingClient) CoreV1() typedcorev1.CoreV1Interface {
	return sharingCoreV1{c.Interface.CoreV1(), c.source}
}

type sharingCoreV1 struct {
	typedcorev1.CoreV1Interface
	source Source
}

func (c sharingCoreV1) Services(namespace string) typedcorev1.ServiceInterface {
	return ShareServices(c.CoreV1Interface.Services(namespace), c.source, namespace)
}

// TestShareServices has an informer keep the very objects of the cache, and follow their changes.
func TestShareServices(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	service := func(name, clusterIP string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: clusterIP}}
	}
	api := fake.NewClientset(service("first", "10.43.0.10"), service("headless", corev1.ClusterIPNone))
	shared := New(ctx, informers.NewSharedInformerFactory(api, 0), api)
	source := func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return shared.View(ctx, Options{}), nil
	}
	own := informers.NewSharedInformerFactoryWithOptions(sharingClient{fake.NewClientset(), source}, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = "spec.clusterIP!=None"
	}))
	informer := own.Core().V1().Services().Informer()
	changes := make(chan types.NamespacedName, 10)
	tell := func(object any) { changes <- types.NamespacedName{Name: Latest(object).(*corev1.Service).Name} }
	_, _ = informer.AddEventHandler(OnChange(tell))
	own.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer was not filled")
	}
	same := func(name string) {
		t.Helper()
		kept, _, _ := informer.GetStore().GetByKey("default/" + name)
		theirs, _, _ := shared.shared.Core().V1().Services().Informer().GetStore().GetByKey("default/" + name)
		if kept == nil || kept != theirs {
			t.Errorf("the informer keeps %p of %s, and the cache %p", kept, name, theirs)
		}
	}
	<-changes
	same("first")
	if n := len(informer.GetStore().List()); n != 1 {
		t.Errorf("the informer has %d Services, want the one that it asked for", n)
	}

	if _, err := api.CoreV1().Services("default").Create(ctx, service("second", "10.43.0.11"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changes
	same("second")
	if err := api.CoreV1().Services("default").Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changes
	if keys := informer.GetStore().ListKeys(); len(keys) != 1 || keys[0] != "default/second" {
		t.Errorf("after a deletion the informer has %v", keys)
	}
	cancel()
	own.Shutdown()
}

// TestShareServicesEnds stops a watch that nobody reads.
func TestShareServicesEnds(t *testing.T) {
	api := fake.NewClientset(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"}})
	shared := New(t.Context(), informers.NewSharedInformerFactory(api, 0), api)
	source := func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return shared.View(ctx, Options{}), nil
	}
	services := ShareServices(api.CoreV1().Services(""), source, "")
	w, err := services.Watch(t.Context(), metav1.ListOptions{SendInitialEvents: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	w.Stop()
	for range w.ResultChan() { // it is closed
	}
	w.Stop()

	// Other watches go to the API.
	w, err = services.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, is := w.(*objectWatch); is {
		t.Error("a watch from a version on was answered from the cache")
	}
	w.Stop()
}
