package objectcache

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// account is a handler that checks whether the events that it gets fit together.
type account struct {
	mu     sync.Mutex
	nodes  map[string]*corev1.Node
	faults []string
	// updates of objects that were there already
	resyncs int
}

func (a *account) OnAdd(object any, _ bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := object.(*corev1.Node)
	if a.nodes[node.Name] != nil {
		a.faults = append(a.faults, node.Name+" was added twice")
	}
	if a.nodes == nil {
		a.nodes = map[string]*corev1.Node{}
	}
	a.nodes[node.Name] = node
}

func (a *account) OnUpdate(before, object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := object.(*corev1.Node)
	if a.nodes[node.Name] != before {
		a.faults = append(a.faults, node.Name+" was not what it was updated from")
	}
	if before == object {
		a.resyncs++
	}
	a.nodes[node.Name] = node
}

func (a *account) OnDelete(object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name, err := cache.DeletionHandlingObjectToName(object)
	if err != nil || a.nodes[name.Name] == nil {
		a.faults = append(a.faults, fmt.Sprintf("%s was deleted twice, %v", name, err))
	}
	delete(a.nodes, name.Name)
}

// check compares the account with the real objects.
func (a *account) check(t *testing.T, who string, nodes *corev1.NodeList) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, fault := range a.faults {
		t.Errorf("%s: %s", who, fault)
	}
	if len(a.nodes) != len(nodes.Items) {
		t.Errorf("%s has %d nodes, want %d", who, len(a.nodes), len(nodes.Items))
	}
	for _, node := range nodes.Items {
		if known := a.nodes[node.Name]; known == nil || known.Labels["turn"] != node.Labels["turn"] {
			t.Errorf("%s has node %v, want %v", who, known, node)
		}
	}
}

// TestHandlers has handlers come and go while objects change.
func TestHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		nodes := client.CoreV1().Nodes()
		objects := New(t.Context(), informers.NewSharedInformerFactory(client, 0), client)
		view := objects.View(t.Context(), Options{})
		informer := view.Core().V1().Nodes().Informer()
		stopped := make(chan struct{})
		slow := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { <-stopped }}
		if _, err := informer.AddEventHandler(slow); err != nil {
			t.Fatal(err)
		}
		var accounts [20]account
		var all []cache.ResourceEventHandlerRegistration
		view.Start(nil)
		must := func(_ *corev1.Node, err error) {
			if err != nil {
				t.Error(err)
			}
		}
		for turn := range len(accounts) * 10 {
			name := fmt.Sprint("n", turn%17)
			node := newNode(name)
			node.Labels = map[string]string{"turn": fmt.Sprint(turn)}
			switch {
			case turn%34 < 17:
				must(nodes.Create(t.Context(), node, metav1.CreateOptions{}))
			case turn%3 == 0:
				must(nodes.Update(t.Context(), node, metav1.UpdateOptions{}))
				fallthrough
			default:
				must(nil, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			if turn%10 == 0 {
				added, err := informer.AddEventHandler(&accounts[turn/10])
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, added)
			}
		}
		if err := informer.RemoveEventHandler(all[0]); err != nil {
			t.Error(err)
		}
		if err := informer.RemoveEventHandler(nil); err == nil {
			t.Error("removing a handler that was never added returned no error")
		}
		synctest.Wait()
		gone := len(accounts[0].nodes)
		must(nodes.Create(t.Context(), newNode("last"), metav1.CreateOptions{}))
		synctest.Wait()
		truth, err := nodes.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range accounts {
			if i == 0 {
				if len(accounts[0].nodes) != gone {
					t.Error("the handler that was removed still gets events")
				}
				continue
			}
			accounts[i].check(t, fmt.Sprint("handler ", i), truth)
			if !all[i].HasSynced() {
				t.Errorf("handler %d has not synced", i)
			}
		}
		close(stopped)
		view.Shutdown()
	})
}

// TestResync checks that a handler gets all objects again.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(newNode("a"), newNode("b"))
		objects := New(t.Context(), informers.NewSharedInformerFactory(client, 0), client)
		view := objects.View(t.Context(), Options{Resync: time.Hour})
		informer := view.Core().V1().Nodes().Informer()
		var often, seldom, never account
		_, err1 := informer.AddEventHandlerWithResyncPeriod(&often, time.Minute)
		_, err2 := informer.AddEventHandler(&seldom)
		_, err3 := informer.AddEventHandlerWithResyncPeriod(&never, 0)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		view.Start(nil)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if often.resyncs != 120 || seldom.resyncs != 2 || never.resyncs != 0 {
			t.Errorf("each minute: %d, each hour: %d, never: %d", often.resyncs, seldom.resyncs, never.resyncs)
		}
		view.Shutdown()
		time.Sleep(time.Hour)
		if often.resyncs != 120 {
			t.Error("resyncs continue after the shutdown")
		}
	})
}

// TestSynced has a handler that has not yet handled the objects that were there before
// it.
func TestSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(newNode("a"))
		objects := New(t.Context(), informers.NewSharedInformerFactory(client, 0), client)
		view := objects.View(t.Context(), Options{})
		informer := view.Core().V1().Nodes().Informer()
		for _, when := range []string{"before", "after"} {
			goOn := make(chan struct{})
			added, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(_ any, initial bool) {
				if !initial {
					t.Error("the first objects are new ones")
				}
				<-goOn
			}})
			if err != nil {
				t.Fatal(err)
			}
			view.Start(nil)
			synctest.Wait()
			if !informer.HasSynced() || added.HasSynced() {
				t.Errorf("%s the start: the informer is synced: %t, the handler: %t", when, informer.HasSynced(), added.HasSynced())
			}
			close(goOn)
			<-added.HasSyncedChecker().Done()
		}
		view.Shutdown()
	})
}
