package customresources

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// hammering is how many objects each writer of TestHammer makes.
const hammering = 20

// Objects are created, read, converted, changed, watched and deleted, while their
// definition changes and the handlers forget the kind all the time. No write is lost, no
// read is wrong, and informers of both versions get to know all objects.
func TestHammer(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var background, writers sync.WaitGroup
	again := func(do func(i int)) {
		background.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				do(i)
			}
		})
	}
	again(func(i int) { // the definition changes, without an effect on the objects
		d := widgetDefinition("1", int64(i+2), "red")
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = fmt.Sprint(i)
		d.Spec.Versions[i%2].AdditionalPrinterColumns = nil
		c.source.Modify(d)
		pause(ctx, 30*time.Millisecond)
	})
	again(func(int) {
		age(c.full)
		pause(ctx, 2*time.Millisecond)
	})
	again(func(int) {
		settle(c.full)
		pause(ctx, 20*time.Millisecond)
	})
	again(func(int) {
		age(c.light)
		pause(ctx, 5*time.Millisecond)
	})
	seen := &sightings{}
	const left = 3 * hammering * 3 / 4
	for _, version := range []string{"v1", "v2"} {
		resource := widgets
		resource.Version = version
		again(func(int) {
			list, err := c.Resource(resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				c.tolerate(ctx, err)
				return
			}
			for _, object := range list.Items {
				c.check(&object, version)
			}
		})
		background.Go(func() { c.follow(ctx, version, seen) })
	}
	for n := range 3 {
		client := c.Resource(widgets).Namespace(fmt.Sprintf("n%d", n))
		writers.Go(func() {
			for i := range hammering {
				c.write(client, fmt.Sprintf("o%d", i))
			}
		})
	}
	writers.Wait()
	// Whoever follows sees the last object of each version at last.
	c.until("all watches have seen everything", func() bool { return seen.complete(left) })
	stop()
	background.Wait()
	age(c.full)
	list, err := c.Resource(widgets).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != left {
		t.Errorf("in the end there are %d objects, %v, want %d", len(list.Items), err, left)
	}
}

func pause(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// write creates and changes an object, and deletes it again unless it stays. It repeats
// what fails for a reason that upstream's handler has for it too.
func (c *cluster) write(client dynamic.ResourceInterface, name string) {
	ctx := c.Context()
	for {
		if _, err := client.Create(ctx, widget(name, map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			break
		} else {
			c.tolerate(ctx, err)
		}
	}
	for {
		object, err := client.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{})
		if err == nil {
			c.check(object, "v1")
			break
		}
		c.tolerate(ctx, err)
	}
	for !stays(name) {
		err := client.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		c.tolerate(ctx, err)
	}
}

// tolerate fails the test if an error says more than that storage was destroyed under a
// request.
func (c *cluster) tolerate(ctx context.Context, err error) {
	if ctx.Err() == nil && !apierrors.IsInternalError(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) && !apierrors.IsServerTimeout(err) {
		c.Errorf("a request failed: %v", err)
	}
	pause(ctx, time.Millisecond)
}

// check fails the test unless an object looks as its version must.
func (c *cluster) check(object *unstructured.Unstructured, version string) {
	_, hasSize, _ := unstructured.NestedInt64(object.Object, "spec", "size")
	if object.GetAPIVersion() != "example.com/"+version || hasSize != (version == "v1") || color(object) != "red" {
		c.Errorf("an object of %s is %v", version, object.Object)
	}
}

// sightings are the objects that stay and that the informers of each version have seen.
type sightings struct {
	v1, v2 sync.Map
	count  [2]atomic.Int32
}

func (s *sightings) add(version, name string) {
	all, count := &s.v1, &s.count[0]
	if version == "v2" {
		all, count = &s.v2, &s.count[1]
	}
	if _, again := all.LoadOrStore(name, true); !again {
		count.Add(1)
	}
}

func (s *sightings) complete(want int32) bool {
	return s.count[0].Load() == want && s.count[1].Load() == want
}

// follow lists and watches objects as an informer does.
func (c *cluster) follow(ctx context.Context, version string, seen *sightings) {
	resource := widgets
	resource.Version = version
	client, last := c.Resource(resource), ""
	see := func(object *unstructured.Unstructured) {
		c.check(object, version)
		if stays(object.GetName()) {
			seen.add(version, object.GetNamespace()+"/"+object.GetName())
		}
	}
	for ctx.Err() == nil {
		if last == "" {
			list, err := client.List(ctx, metav1.ListOptions{})
			if err != nil {
				c.tolerate(ctx, err)
				continue
			}
			last = list.GetResourceVersion()
			for _, object := range list.Items {
				see(&object)
			}
		}
		w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: last, AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) {
			last = ""
			continue
		}
		if err != nil {
			c.tolerate(ctx, err)
			continue
		}
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				last = ""
				break
			}
			object := event.Object.(*unstructured.Unstructured)
			last = object.GetResourceVersion()
			if event.Type != watch.Bookmark {
				see(object)
			}
		}
		w.Stop()
	}
}

// stays tells whether a writer leaves an object.
func stays(name string) bool {
	var i int
	_, err := fmt.Sscanf(name, "o%d", &i)
	return err == nil && i%4 != 0
}
