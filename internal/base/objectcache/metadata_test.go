package objectcache

import (
	"context"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// Handlers of an informer of metadata get what they get from upstream's factory, and nothing
// is left of it in the end.
func TestMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		scheme := fake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		widget := func(name string) *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"},
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"},
			}
		}
		client := fake.NewSimpleMetadataClient(scheme, widget("one"))
		factory := Metadata(ctx, metadatainformer.NewSharedInformerFactory(client, 0), 0)
		resource := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
		informer := factory.ForResource(resource)
		var told [2][]string
		for i := range told {
			tell := func(what string) func(any) {
				return func(object any) { told[i] = append(told[i], what+" "+object.(*metav1.PartialObjectMetadata).Name) }
			}
			if _, err := factory.ForResource(resource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell("add"), DeleteFunc: tell("delete")}); err != nil {
				t.Fatal(err)
			}
		}
		factory.Start(nil)
		if synced := factory.WaitForCacheSync(ctx.Done()); !synced[resource] {
			t.Error("the informer has not synced")
		}
		synctest.Wait()
		if err := client.Resource(resource).Namespace("a").Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i := range told {
			if len(told[i]) != 2 || told[i][0] != "add one" || told[i][1] != "delete one" {
				t.Errorf("handler %d was told %v", i, told[i])
			}
		}
		if objects, err := informer.Lister().List(labels.Everything()); err != nil || len(objects) != 0 {
			t.Errorf("the lister has %v, %v", objects, err)
		}
		stop()
		factory.Shutdown()
	})
}
