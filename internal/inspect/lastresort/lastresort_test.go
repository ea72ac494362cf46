package lastresort

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// world is a cluster with an observer.
type world struct {
	*observer
	api *fake.Clientset
	ctx context.Context
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{api: fake.NewClientset(objects...), ctx: t.Context()}
	// The fence lets nothing of nodes pass.
	w.api.PrependReactor("*", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
	})
	w.observer = newObserver(w.ctx, w.api)
	return w
}

// newObserver returns an observer of a server that has just been elected.
func newObserver(ctx context.Context, api *fake.Clientset) *observer {
	return &observer{
		api:      api,
		clients:  why.Clients{Kubernetes: api, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Now: time.Now},
		unused:   func(context.Context, schema.GroupResource) bool { return true },
		recorder: func() record.EventRecorder { return events.NewRecorder(ctx, api, why.Author, "") },
	}
}

// written returns the Events that the observer has written: object, reason, message.
func (w *world) written(t *testing.T) (all []string) {
	t.Helper()
	synctest.Wait()
	list, err := w.api.CoreV1().Events("").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Source.Component == why.Author {
			all = append(all, fmt.Sprintf("%s %s/%s %s: %s", e.InvolvedObject.Kind, e.Namespace, e.InvolvedObject.Name, e.Reason, e.Message))
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) mustLook(t *testing.T) {
	t.Helper()
	if err := w.look(w.ctx); err != nil {
		t.Fatal(err)
	}
}

// looks returns how often the observer has looked.
func (w *world) looks() (n int) {
	for _, action := range w.api.Actions() {
		if action.Matches("list", "namespaces") {
			n++
		}
	}
	return n
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// service returns a Service that selects no pod.
func service(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, ClusterIP: "10.43.0.9"},
	}
}

const (
	ofWeb = "Service shop/web SelectorMatchesNothing: The Service selects pods with app=web, and namespace shop has no pods. What to do: " +
		"see whether the workload of these pods exists, and is in the namespace of the Service: kubectl get deployments,statefulsets,daemonsets -A"
	ofFront = "Ingress shop/front IngressClassMissing: There is no IngressClass nginx, so no controller serves the Ingress. What to do: " +
		"correct spec.ingressClassName of the Ingress. IngressClasses of the cluster: none"
)

// TestLooks has a Service without pods and an Ingress without a class. The second look writes about them, and no other one for an hour.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		front := &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front", UID: "front"},
			Spec: networkingv1.IngressSpec{IngressClassName: ptr.To("nginx"), DefaultBackend: &networkingv1.IngressBackend{
				Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
			}},
		}
		w := newWorld(t, namespace("shop"), service("shop", "web"), front)
		w.api.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(50 * time.Millisecond) // a slow machine has its second look as soon as others
			return false, nil, nil
		})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.run(ctx, logrus.WithField("component", "test")); close(ended) }()
		time.Sleep(2*settling - time.Second)
		if got := w.written(t); len(got) > 0 {
			t.Errorf("before the second look it has written %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := w.written(t); !slices.Equal(got, []string{ofFront, ofWeb}) {
			t.Errorf("the second look has written\n%s", strings.Join(got, "\n"))
		}
		before := w.looks()
		time.Sleep(again - pause)
		if got := w.written(t); len(got) != 2 {
			t.Errorf("within an hour it has written %q", got)
		}
		if looks := w.looks() - before; looks != int((again-pause)/pause) {
			t.Errorf("in %s it has looked %d times", again-pause, looks)
		}
		end()
		<-ended
	})
}

// TestLongLooks has looks that take long. They come less often.
func TestLongLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, namespace("shop"))
		var took atomic.Int64
		took.Store(int64(time.Second))
		w.api.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Duration(took.Load()))
			return false, nil, nil
		})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.run(ctx, logrus.WithField("component", "test")); close(ended) }()
		time.Sleep(10 * time.Hour)
		if looks := w.looks(); looks != 2+int(10*time.Hour/((share+1)*time.Second)) {
			t.Errorf("with looks of a second, there are %d in ten hours", looks)
		}
		before := w.looks()
		took.Store(int64(time.Minute))
		time.Sleep(10 * time.Hour)
		if looks := w.looks() - before; looks < 9 || looks > 11 {
			t.Errorf("with looks of a minute, there are %d in ten hours", looks)
		}
		end()
		<-ended
	})
}

// TestRepeat lets an hour pass, in which the Event expires. Another server that is elected meanwhile repeats nothing.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, namespace("shop"), service("shop", "web"))
		w.mustLook(t)
		w.mustLook(t)
		first := w.written(t)
		w.observer = newObserver(w.ctx, w.api)
		for range 3 {
			time.Sleep(pause)
			w.mustLook(t)
		}
		if got := w.written(t); len(first) != 1 || !slices.Equal(first, got) {
			t.Errorf("written first %q, and by the next server %q", first, got)
		}
		time.Sleep(again)
		if err := w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("events"), "shop", w.name(t)); err != nil {
			t.Fatal(err)
		}
		w.mustLook(t)
		if got := w.written(t); !slices.Equal(first, got) {
			t.Errorf("after an hour there is %q", got)
		}
	})
}

// name returns the name of the only Event.
func (w *world) name(t *testing.T) string {
	t.Helper()
	list, err := w.api.CoreV1().Events("").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("there are %d Events, %v", len(list.Items), err)
	}
	return list.Items[0].Name
}

// TestSilence has objects about which nothing is to be written.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warned := service("shop", "warned")
		warning := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "warning"}, InvolvedObject: corev1.ObjectReference{UID: warned.UID},
			Type: corev1.EventTypeWarning, Reason: "Other", Source: corev1.EventSource{Component: "other"}, LastTimestamp: metav1.Now(),
		}
		dns := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns", UID: "dns"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.10"}}
		away := namespace("away")
		away.DeletionTimestamp = ptr.To(metav1.Now())
		failing := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "db", UID: "db", Labels: map[string]string{"app": "db"}}, Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "x"}}}}
		w := newWorld(t, namespace("shop"), namespace("kube-system"), namespace("other"), away,
			warned, warning, dns, service("away", "web"), failing, service("other", "db"), service("shop", "brief"))
		w.mustLook(t)
		brief := service("shop", "brief")
		brief.UID = "a new one"
		if _, err := w.api.CoreV1().Services("shop").Update(w.ctx, brief, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.mustLook(t)
		if got := w.written(t); len(got) > 0 {
			t.Errorf("it has written %q", got)
		}
		time.Sleep(again)
		w.mustLook(t)
		if got := w.written(t); len(got) != 2 || !strings.Contains(got[1], "shop/warned") {
			t.Errorf("after the last warning is over, it has written %q", got)
		}
	})
}

// TestBounds has a namespace with very many objects, and more namespaces than a look has Events.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{namespace("a-flood")}
		for i := range 200 {
			objects = append(objects, service("a-flood", fmt.Sprint("s", i)))
		}
		for i := range mostOfLook + 10 {
			name := fmt.Sprint("tenant-", i)
			objects = append(objects, namespace(name), service(name, "web"))
		}
		w := newWorld(t, objects...)
		of := func() (flood, tenants int) {
			all := w.written(t)
			flood = len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.Contains(s, "a-flood") }))
			return flood, len(all) - flood
		}
		w.mustLook(t)
		w.mustLook(t)
		if flood, tenants := of(); flood != 1 || tenants != mostOfLook-1 {
			t.Errorf("written: %d of the flood, %d of others", flood, tenants)
		}
		time.Sleep(pause)
		w.mustLook(t)
		if flood, tenants := of(); flood != 1+mostOfNamespace || tenants != mostOfLook+10 {
			t.Errorf("after another look there are %d of the flood, %d of others", flood, tenants)
		}
	})
}

// TestFaults has a kind that the API does not tell in one namespace.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, namespace("a"), namespace("shop"), service("shop", "web"))
		w.api.PrependReactor("list", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.GetNamespace() == "a", nil, apierrors.NewInternalError(errors.New("damaged"))
		})
		for range 2 {
			if err := w.look(w.ctx); err == nil || !strings.Contains(err.Error(), "look at namespace a") || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("the error is %v", err)
			}
		}
		if got := w.written(t); !slices.Equal(got, []string{ofWeb}) {
			t.Errorf("of the other namespace it has written %q", got)
		}
	})
}

// TestRules makes sure that all rules of the table are rules of package why: each has an example there.
func TestRules(t *testing.T) {
	for kind, rules := range silent {
		for _, rule := range rules {
			if !exists(t, rule) {
				t.Errorf("%s: package why has no rule %s", kind, rule)
			}
		}
	}
	if exists(t, "no-such-rule") {
		t.Error("there is a rule of any name")
	}
}
