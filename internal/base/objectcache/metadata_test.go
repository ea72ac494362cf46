package objectcache

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"
)

// Handlers of an informer of metadata get what they get from upstream's factory. The informer
// ends some time after the last controller, and then begins anew.
func TestMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		scheme := fake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		widget := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"},
			ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "a"},
		}
		client := fake.NewSimpleMetadataClient(scheme, widget)
		factory := Metadata(ctx, client, 0)
		resource := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
		var mu sync.Mutex
		told := map[int][]string{}
		// use does what the garbage collector does. The function that it returns stops the controller.
		use := func(n int) (end func()) {
			tell := func(what string) func(any) {
				return func(object any) {
					mu.Lock()
					defer mu.Unlock()
					told[n] = append(told[n], what+" "+object.(*metav1.PartialObjectMetadata).Name)
				}
			}
			found := factory.ForResource(resource)
			if _, err := found.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell("add"), DeleteFunc: tell("delete")}); err != nil {
				t.Fatal(err)
			}
			controller, stopped := found.Informer().GetController(), make(chan struct{})
			factory.Start(nil)
			go controller.Run(stopped)
			synctest.Wait()
			return func() {
				close(stopped)
				synctest.Wait()
			}
		}
		check := func(n int, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told[n], want) {
				t.Errorf("handler %d was told %v, want %v", n, told[n], want)
			}
		}
		endFirst, endSecond := use(1), use(2)
		if synced := factory.WaitForCacheSync(ctx.Done()); !synced[resource] {
			t.Error("the informer has not synced")
		}
		informer := factory.ForResource(resource)
		endFirst()
		widgets := client.Resource(resource).Namespace("a")
		if err := widgets.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check(1, "add one")
		check(2, "add one", "delete one")
		if objects, err := informer.Lister().List(labels.Everything()); err != nil || len(objects) != 0 {
			t.Errorf("the lister has %v, %v", objects, err)
		}
		if informer.Informer().IsStopped() {
			t.Error("the informer has ended while a controller runs")
		}
		endSecond()
		if informer.Informer().IsStopped() {
			t.Error("the informer has ended at once")
		}
		time.Sleep(lingerTime)
		synctest.Wait()
		if !informer.Informer().IsStopped() {
			t.Error("the informer runs without a controller")
		}

		if err := client.Tracker().Add(widget); err != nil {
			t.Fatal(err)
		}
		endThird := use(3)
		check(3, "add one")
		stop()
		endThird()
		factory.Shutdown()
	})
}

// What the garbage collector and the quotas read of an object stays, and nothing else.
func TestIdentities(t *testing.T) {
	deleted := metav1.Now()
	object := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "one", Namespace: "a", UID: "1-2", ResourceVersion: "7", DeletionTimestamp: &deleted,
			OwnerReferences: []metav1.OwnerReference{{Name: "owner", UID: "3"}}, Finalizers: []string{"foregroundDeletion"},
		},
	}
	want := object.DeepCopy()
	object.Labels, object.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	object.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	transform := identities()
	got, err := transform(object)
	if err != nil || !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := transform("another object"); got != "another object" || err != nil {
		t.Errorf("another object became %v, %v", got, err)
	}
}
