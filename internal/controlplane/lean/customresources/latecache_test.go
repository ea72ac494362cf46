package customresources

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// A version of a kind has a watch cache when somebody writes or reads objects of that version, and
// then serves all requests for it.
func TestWatchCacheOfAVersion(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx := t.Context()
	cached := func(version string) bool {
		c.full.mu.Lock()
		defer c.full.mu.Unlock()
		return !c.full.kinds["widgets.example.com"].versions[version].since.IsZero()
	}
	if _, err := c.Resource(widgets).Namespace("a").Create(ctx, widget("one", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !cached("v1") || cached("v2") {
		t.Errorf("after a write of v1, v1 has a watch cache: %t, v2: %t", cached("v1"), cached("v2"))
	}
	settle(c.full)
	other := widgets
	other.Version = "v2"
	for range 2 {
		list, err := c.Resource(other).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].GetAPIVersion() != "example.com/v2" || color(&list.Items[0]) != "red" {
			t.Fatalf("the list of v2 is %v, %v", list, err)
		}
		if !cached("v2") {
			t.Error("after a list of v2, v2 has no watch cache")
		}
		settle(c.full)
	}
	w, err := c.Resource(other).Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if watching(c.full) != 1 {
		t.Error("the full handler does not serve a watch of v2")
	}
	c.next(w)
	if _, err := c.Resource(other).Namespace("a").Patch(ctx, "one", "application/merge-patch+json", []byte(`{"spec":{"color":"blue"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := c.next(w); event.Type != watch.Modified || color(event.Object) != "blue" {
		t.Errorf("the watch of v2 got %v", event)
	}
	one, err := c.Resource(widgets).Namespace("a").Get(ctx, "one", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil || one.GetAPIVersion() != "example.com/v1" {
		t.Errorf("v1 of the object is %v, %v", one, err)
	}
}

// namedStorage is a storage of which an object has the name.
type namedStorage struct {
	storage.Interface
	name  string
	ready error
}

func (s *namedStorage) ReadinessCheck() error { return s.ready }

func (s *namedStorage) Get(_ context.Context, _ string, _ storage.GetOptions, into runtime.Object) error {
	into.(*unstructured.Unstructured).SetName(s.name)
	return nil
}

// Reads are answered without the watch cache until it is filled. A watch cache that cannot be made
// is tried again, and none is made of storage that is destroyed.
func TestLateCache(t *testing.T) {
	cached, failed := &namedStorage{name: "cached", ready: errors.New("not yet")}, errors.New("failed")
	var fails error
	var made, destroyed int
	late := func() *lateCache {
		return &lateCache{
			Interface: &namedStorage{name: "plain"},
			destroys:  []factory.DestroyFunc{func() { destroyed++ }},
			decorate: func() (storage.Interface, factory.DestroyFunc, error) {
				made++
				return cached, func() { destroyed++ }, fails
			},
		}
	}
	c := late()
	answers := func(want string) {
		t.Helper()
		object := &unstructured.Unstructured{Object: map[string]any{}}
		if err := c.Get(t.Context(), "", storage.GetOptions{}, object); err != nil || object.GetName() != want {
			t.Errorf("a read is answered by %q, %v, want %q", object.GetName(), err, want)
		}
	}
	fails = failed
	if err := c.Get(t.Context(), "", storage.GetOptions{}, nil); !errors.Is(err, failed) {
		t.Errorf("a watch cache that cannot be made: %v", err)
	}
	fails = nil
	answers("plain")
	cached.ready = nil
	answers("cached")
	c.destroy()
	c.destroy()
	if made != 2 || destroyed != 2 {
		t.Errorf("%d watch caches were made and %d storages destroyed, want 2 and 2", made, destroyed)
	}
	c = late()
	c.destroy()
	answers("plain")
	if made != 2 || destroyed != 3 {
		t.Errorf("%d watch caches were made and %d storages destroyed, want 2 and 3", made, destroyed)
	}
}
