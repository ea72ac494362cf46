package objectcache

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// heard adds a handler to the nodes of factory, and returns the events that it gets.
func heard(t *testing.T, factory informers.SharedInformerFactory) *[]string {
	t.Helper()
	var names []string
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { names = append(names, object.(*corev1.Node).Name) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return &names
}

// TestViews makes two components share an informer. One of them ends before the other,
// and comes back.
func TestViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(newNode("a"))
		factory := informers.NewSharedInformerFactory(nil, 0) // the factory's own client must not be used
		objects := New(ctx, factory, client)
		byName := cache.Indexers{"by-name": func(object any) ([]string, error) { return []string{object.(*corev1.Node).Name}, nil }}

		stays := objects.View(ctx, Options{})
		all := heard(t, stays)
		stays.Start(nil)
		short, stop := context.WithCancel(ctx)
		leaves := objects.View(short, Options{})
		some := heard(t, leaves)
		if err := leaves.Core().V1().Nodes().Informer().AddIndexers(byName); err != nil {
			t.Fatal(err)
		}
		leaves.StartWithContext(short)
		if ok := leaves.WaitForCacheSync(ctx.Done()); len(ok) != 1 || !ok[reflect.TypeFor[*corev1.Node]()] {
			t.Errorf("synced %v", ok)
		}
		synctest.Wait()
		stop()
		leaves.Shutdown()
		if _, err := client.CoreV1().Nodes().Create(ctx, newNode("b"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := strings.Join(*all, " "); got != "a b" {
			t.Errorf("the handler that stayed got %q, want \"a b\"", got)
		}
		if got := strings.Join(*some, " "); got != "a" {
			t.Errorf("the handler that was removed got %q, want \"a\"", got)
		}
		if _, err := leaves.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{}); err == nil {
			t.Error("a handler can be added after the end")
		}

		again := objects.View(ctx, Options{})
		once := heard(t, again)
		synctest.Wait()
		if len(*once) != 0 {
			t.Errorf("before the start it heard %v", *once)
		}
		again.Start(nil)
		nodes := again.Core().V1().Nodes().Informer()
		for _, add := range []func(cache.Indexers) error{nodes.AddIndexers, nodes.GetIndexer().AddIndexers} {
			if err := add(byName); err != nil {
				t.Errorf("an index for the second time: %v", err)
			}
		}
		synctest.Wait()
		if len(*once) != 2 {
			t.Errorf("the handler that was added again got %v, want both nodes", *once)
		}
		if found, err := nodes.GetIndexer().ByIndex("by-name", "b"); err != nil || len(found) != 1 {
			t.Errorf("index has %v, %v", found, err)
		}
		lists := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "list" {
				lists++
			}
		}
		if lists != 1 {
			t.Errorf("nodes were listed %d times", lists)
		}
		again.Shutdown()
		stays.Shutdown()
		cancel()
		factory.Shutdown()
	})
}

// TestOnly shows a view only some of the pods, as a watch with a selector would.
func TestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Status: corev1.PodStatus{Phase: phase}}
		}
		client := fake.NewClientset(newNode("a"), pod("ended", corev1.PodSucceeded), pod("runs", corev1.PodRunning))
		factory := informers.NewSharedInformerFactory(client, 0)
		view := New(ctx, factory, client).View(ctx, Options{Only: Select(func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodSucceeded })})
		var told []string
		tell := func(what string) func(any) {
			return func(object any) { told = append(told, what+" "+Latest(object).(*corev1.Pod).Name) }
		}
		pods := view.Core().V1().Pods()
		_, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: tell("add"), UpdateFunc: func(_, now any) { tell("update")(now) }, DeleteFunc: tell("delete"),
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes := view.Core().V1().Nodes().Informer()
		view.Start(nil)
		if got := view.WaitForCacheSyncWithContext(ctx); got.Err != nil || len(got.Synced) != 2 {
			t.Errorf("synced %v", got)
		}
		shown := func() string {
			t.Helper()
			all, err := pods.Lister().List(labels.Everything())
			some, errNamespace := pods.Lister().Pods("default").List(labels.Everything())
			if err != nil || errNamespace != nil || len(all) != len(some) {
				t.Errorf("all: %v, of one namespace: %v: %v", all, some, errors.Join(err, errNamespace))
			}
			var names []string
			for _, one := range all {
				names = append(names, one.Name)
				if _, err := pods.Lister().Pods("default").Get(one.Name); err != nil {
					t.Error(err)
				}
			}
			if keys := pods.Informer().GetStore().ListKeys(); len(keys) != len(names) {
				t.Errorf("the store has %v", keys)
			}
			return strings.Join(names, " ")
		}
		if _, err := pods.Lister().Pods("default").Get("ended"); !apierrors.IsNotFound(err) {
			t.Errorf("the pod that has ended is shown: %v", err)
		}
		if len(nodes.GetStore().ListKeys()) != 1 {
			t.Errorf("the view has nodes %v", nodes.GetStore().ListKeys())
		}
		synctest.Wait()
		for _, step := range []struct {
			phase       corev1.PodPhase
			told, shown string
		}{
			{"", "add runs", "runs"},
			{corev1.PodPending, "update runs", "runs"},
			{corev1.PodSucceeded, "delete runs", ""},
			{corev1.PodRunning, "add runs", "runs"},
		} {
			if step.phase != "" {
				if _, err := client.CoreV1().Pods("default").Update(ctx, pod("runs", step.phase), metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if got := strings.Join(told, ","); got != step.told || shown() != step.shown {
				t.Errorf("phase %s: told %q and shown %q, want %q and %q", step.phase, got, shown(), step.told, step.shown)
			}
			told = nil
		}
		view.Shutdown()
		cancel()
		factory.Shutdown()
	})
}

// TestAllIsViewed checks that no method of a view leads to an informer that is not the
// view's.
func TestAllIsViewed(t *testing.T) {
	client := fake.NewClientset()
	objects := New(t.Context(), informers.NewSharedInformerFactory(client, 0), client)
	view := objects.View(t.Context(), Options{Resync: time.Hour})
	generic, err := view.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if err != nil {
		t.Fatal(err)
	}
	viewed := func(informer cache.SharedIndexInformer) bool {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{})
		if err != nil {
			t.Fatal(err)
		}
		_, ok := registration.(*listener)
		return ok
	}
	if !viewed(generic.Informer()) {
		t.Errorf("ForResource has a %T that is not the view's", generic.Informer())
	}
	// Every factory.Group().Version().Kind().Informer().
	found := 0
	var walk func(value reflect.Value, depth int)
	walk = func(value reflect.Value, depth int) {
		for i := range value.NumMethod() {
			method := value.Method(i)
			if method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
				continue
			}
			name := value.Type().Method(i).Name
			switch {
			case name == "Informer":
				found++
				if informer, ok := method.Call(nil)[0].Interface().(cache.SharedIndexInformer); !ok || !viewed(informer) {
					t.Errorf("%v has an informer that is not the view's", value.Type())
				}
			case name != "Lister" && depth < 3:
				walk(method.Call(nil)[0], depth+1)
			}
		}
	}
	groups := reflect.TypeFor[informers.SharedInformerFactory]()
	for i := range groups.NumMethod() {
		if method := groups.Method(i); method.Type.NumIn() == 0 && method.Type.NumOut() == 1 && method.Name != "InformerName" {
			walk(reflect.ValueOf(view).MethodByName(method.Name).Call(nil)[0], 1)
		}
	}
	if found < 50 {
		t.Errorf("only %d kinds were found", found)
	}
}

// TestSyncOfOthers has a component that is not told whether the informers of others have synced.
func TestSyncOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		objects := New(ctx, factory, client)
		one, other := objects.View(ctx, Options{}), objects.View(ctx, Options{})
		one.Core().V1().Nodes().Informer()
		other.Core().V1().Pods().Informer()
		for _, view := range []informers.SharedInformerFactory{one, other} {
			view.Start(nil)
			view.WaitForCacheSync(nil)
		}
		if got := one.WaitForCacheSync(nil); len(got) != 1 || !got[reflect.TypeFor[*corev1.Node]()] {
			t.Errorf("got %v, want only nodes", got)
		}
		cancel()
		factory.Shutdown()
	})
}

// TestOneHub has one hub for an informer, however a component gets the informer.
func TestOneHub(t *testing.T) {
	client := fake.NewClientset()
	objects := New(t.Context(), informers.NewSharedInformerFactory(client, 0), client)
	for range 2 {
		view := objects.View(t.Context(), Options{})
		generic, err := view.ForResource(corev1.SchemeGroupVersion.WithResource("nodes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, informer := range []cache.SharedIndexInformer{generic.Informer(), view.Core().V1().Nodes().Informer(), view.Core().V1().Nodes().TypedInformer()} {
			if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(objects.hubs) != 1 {
		t.Errorf("got %d hubs for one informer", len(objects.hubs))
	}
}

// TestOpen wants end to wait for informers that only their own component has, while the context of
// the caller goes on.
func TestOpen(t *testing.T) {
	working, factory, end, err := Own(fake.NewClientset(newNode("a"))).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	informer := factory.Core().V1().Nodes().Informer()
	factory.StartWithContext(working)
	if !cache.WaitFor(working, "", informer.HasSyncedChecker()) {
		t.Fatal("the informer has no objects")
	}
	end()
	if working.Err() == nil || !informer.IsStopped() {
		t.Error("the informer has not ended")
	}
	broken := errors.New("broken")
	source := Source(func(context.Context) (informers.SharedInformerFactory, error) { return nil, broken })
	if _, _, _, err := source.Open(t.Context()); err != broken {
		t.Errorf("got %v", err)
	}
}
