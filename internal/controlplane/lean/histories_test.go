package lean

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// changingStorage is a storage whose objects all come by its watch.
type changingStorage struct {
	storage.Interface
	changes *watch.FakeWatcher
}

func (*changingStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (*changingStorage) GetList(_ context.Context, _ string, _ storage.ListOptions, into runtime.Object) error {
	into.(*core.ConfigMapList).ResourceVersion = "1"
	return nil
}

// Watch says at once that there are no objects yet, if the watch cache begins so.
func (s *changingStorage) Watch(_ context.Context, _ string, options storage.ListOptions) (watch.Interface, error) {
	if options.SendInitialEvents != nil {
		go s.changes.Action(watch.Bookmark, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	return s.changes, nil
}

func (*changingStorage) RequestWatchProgress(context.Context) error                { return nil }
func (*changingStorage) GetCurrentResourceVersion(context.Context) (uint64, error) { return 1, nil }
func (*changingStorage) EnableResourceSizeEstimation(storage.KeysFunc) error       { return nil }
func (*changingStorage) CompactRevision() int64                                    { return 0 }

// TestHistories has a watch cache that forgets many changes, and goes on.
func TestHistories(t *testing.T) {
	changing := &changingStorage{changes: watch.NewFake()}
	configMaps := core.Resource("configmaps")
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: changing, Versioner: changing.Versioner(), GroupResource: configMaps,
		EventsHistoryWindow: cacher.DefaultEventFreshDuration, ResourcePrefix: "/configmaps",
		KeyFunc: func(object runtime.Object) (string, error) {
			return "/configmaps/" + object.(*core.ConfigMap).Name, nil
		},
		GetAttrsFunc: func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil },
		NewFunc:      func() runtime.Object { return &core.ConfigMap{} },
		NewListFunc:  func() runtime.Object { return &core.ConfigMapList{} },
		Codec:        legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cached.Stop)
	if err := cached.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	history, err := historyOf(cached, configMaps)
	if err != nil {
		t.Fatal(err)
	}
	change := func(version int) {
		changing.changes.Add(&core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("one-", version), ResourceVersion: strconv.Itoa(version)}})
	}
	// count waits until the watch cache has got a change, and returns the number of changes in the ring.
	count := func(version int) (changes, capacity int) {
		t.Helper()
		into := &core.ConfigMap{}
		if err := cached.Get(t.Context(), fmt.Sprint("/configmaps/one-", version), storage.GetOptions{ResourceVersion: strconv.Itoa(version)}, into); err != nil {
			t.Fatal(err)
		}
		history.mu.RLock()
		defer history.mu.RUnlock()
		return *history.end - *history.start, *history.capacity
	}
	const last = 1000
	for version := 2; version <= last; version++ {
		change(version)
	}
	if changes, capacity := count(last); changes != last-1 || capacity < changes {
		t.Fatalf("there are %d changes in a ring for %d", changes, capacity)
	}
	// lists tells whether the watch cache knows all objects as they were after a change.
	lists := func(version uint64) bool { return (*history.objects).CanServeExactRV(version) }
	history.forget(time.Now().Add(-time.Hour))
	if changes, _ := count(last); changes != last-1 || !lists(2) {
		t.Errorf("of recent changes, %d are left. Lists of the first: %t", changes, lists(2))
	}
	history.forget(time.Now().Add(time.Hour))
	if changes, capacity := count(last); changes != 1 || capacity != leastCapacity || lists(last-1) || !lists(last) {
		t.Errorf("%d changes are left in a ring for %d. Lists of before: %t, of now: %t", changes, capacity, lists(last-1), lists(last))
	}
	// Another round finds nothing to do.
	history.forget(time.Now().Add(time.Hour))

	watchFrom := func(version string) (watch.Interface, error) {
		return cached.Watch(t.Context(), "/configmaps", storage.ListOptions{ResourceVersion: version, Predicate: storage.Everything, Recursive: true})
	}
	behind, err := watchFrom("500")
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Stop()
	if event := <-behind.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("a client that asks for what is forgotten gets %v", event)
	}
	// The change before is old, and another one comes after a client has listed the objects.
	listed := time.Now()
	change(last + 10)
	if changes, _ := count(last + 10); changes != 2 {
		t.Errorf("there are %d changes, want 2", changes)
	}
	history.forget(listed)
	quiet, err := watchFrom(strconv.Itoa(last + 5))
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Stop()
	if event := <-quiet.ResultChan(); event.Type != watch.Added {
		t.Errorf("a client that watches from its list gets %v", event)
	}

	current, err := watchFrom(strconv.Itoa(last + 10))
	for version := last + 11; version <= 2*last; version++ {
		change(version)
		if err != nil {
			t.Fatal(err)
		}
		event, open := <-current.ResultChan()
		for ; !open; event, open = <-current.ResultChan() {
			// The watch cache does not wait for slow clients.
			if current, err = watchFrom(strconv.Itoa(version - 1)); err != nil {
				t.Fatal(err)
			}
		}
		if object, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = object.GetObject()
		}
		if got, ok := event.Object.(*core.ConfigMap); !ok || got.ResourceVersion != strconv.Itoa(version) {
			t.Fatalf("got %v, want version %d", event, version)
		}
	}
	current.Stop()
	if changes, capacity := count(2 * last); changes != last-8 || capacity < changes {
		t.Errorf("there are %d changes in a ring for %d", changes, capacity)
	}
}
