package apiserver

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// halfRead is a store of ConfigMaps at revision 7. It answers lists as upstream's does:
// with what it can read, and an error that names what it cannot.
type halfRead struct {
	storage.Interface
	names, damaged []string
	deleted        string
}

func (h *halfRead) GetList(_ context.Context, _ string, opts storage.ListOptions, list runtime.Object) error {
	into := list.(*api.ConfigMapList)
	for _, name := range h.names {
		if opts.Predicate.Limit > 0 && int64(len(into.Items)) == opts.Predicate.Limit {
			break
		}
		into.Items = append(into.Items, api.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if len(h.damaged) == 0 {
		into.ResourceVersion = "7"
		return nil
	}
	failed := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError, Details: &metav1.StatusDetails{}}}
	for _, key := range h.damaged {
		failed.ErrStatus.Details.Causes = append(failed.ErrStatus.Details.Causes, metav1.StatusCause{Field: key, Message: "proto: wrong wireType"})
	}
	return failed
}

func (h *halfRead) GetCurrentResourceVersion(context.Context) (uint64, error) { return 7, nil }
func (h *halfRead) Versioner() storage.Versioner                              { return storage.APIObjectVersioner{} }

func (h *halfRead) Delete(_ context.Context, key string, _ runtime.Object, _ *storage.Preconditions, _ storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	h.deleted = key
	return nil
}

func newSieved(resource schema.GroupResource, root string, example runtime.Object) (*halfRead, *damagedObjects, storage.Interface) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	store := &halfRead{}
	d := &directStorage{damaged: newDamagedObjects(log.WithField("test", "damaged"))}
	return store, d.damaged, d.newSieve(store, resource, "/registry", root, func() runtime.Object { return example })
}

// TestSieve wants a list to have everything that can be read, at a revision, and what
// cannot be read to be named until it is gone.
func TestSieve(t *testing.T) {
	store, damaged, sieve := newSieved(api.Resource("configmaps"), "/configmaps", &api.ConfigMap{})
	list := func(opts storage.ListOptions) (*api.ConfigMapList, error) {
		into := &api.ConfigMapList{}
		opts.Recursive = true
		return into, sieve.GetList(t.Context(), "/configmaps", opts, into)
	}
	store.names = []string{"a", "b", "c"}
	store.damaged = []string{"/registry/configmaps/default/app"}
	for name, opts := range map[string]storage.ListOptions{
		"all":       {},
		"a page":    {Predicate: storage.SelectionPredicate{Limit: 2}},
		"the cache": {ResourceVersion: "0"},
		"exactly":   {ResourceVersion: "7", ResourceVersionMatch: metav1.ResourceVersionMatchExact},
	} {
		got, err := list(opts)
		if err != nil || len(got.Items) != 3 || got.ResourceVersion != "7" || got.Continue != "" {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if _, err := list(storage.ListOptions{Predicate: storage.SelectionPredicate{Limit: 2, Continue: "x"}}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a later page: %v", err)
	}
	found := damaged.list()
	if len(found) != 1 || found[0].Withheld ||
		found[0].Remove != `kubectl delete --raw "/api/v1/namespaces/default/configmaps/app?ignoreStoreReadErrorWithClusterBreakingPotential=true"` {
		t.Fatalf("got %+v", found)
	}
	for _, want := range []string{"configmaps default/app is damaged in the datastore: proto: wrong wireType", "Lists leave it out"} {
		if !strings.Contains(found[0].String(), want) {
			t.Errorf("no %q in %s", want, found[0])
		}
	}
	if err := sieve.Delete(t.Context(), "/configmaps/default/app", nil, nil, nil, nil, storage.DeleteOptions{}); err != nil || len(damaged.list()) != 0 {
		t.Errorf("after its deletion: %v, %v", damaged.list(), err)
	}
	if _, err := list(storage.ListOptions{}); err != nil || len(damaged.list()) != 1 {
		t.Fatalf("it is back: %v, %v", damaged.list(), err)
	}
	store.damaged = []string{"/registry/configmaps/default/second"}
	if _, err := list(storage.ListOptions{Predicate: storage.SelectionPredicate{Limit: 1}}); err != nil || len(damaged.list()) != 2 {
		t.Errorf("a page with another one: %v, %v", damaged.list(), err)
	}
	store.damaged = nil
	if got, err := list(storage.ListOptions{}); err != nil || len(got.Items) != 3 || len(damaged.list()) != 0 {
		t.Errorf("after it was restored: %+v, %v, %v", got, err, damaged.list())
	}
	store.names, store.damaged = nil, []string{"/registry/configmaps/default/app"}
	if got, err := list(storage.ListOptions{}); err != nil || got.Items == nil {
		t.Errorf("nothing else: %+v, %v", got, err)
	}
}

// TestWithheld wants no list of a kind whose objects are deleted, or allowed, by what is
// missing in the list.
func TestWithheld(t *testing.T) {
	store, damaged, sieve := newSieved(api.Resource("nodes"), "/minions", &api.Node{})
	store.damaged = []string{"/registry/minions/pi"}
	if err := sieve.GetList(t.Context(), "/minions", storage.ListOptions{Recursive: true}, &api.ConfigMapList{}); len(damagedKeys(err)) != 1 {
		t.Errorf("got %v", err)
	}
	found := damaged.list()
	if len(found) != 1 || !found[0].Withheld || found[0].Name != "nodes pi" || !strings.Contains(found[0].Remove, `"/api/v1/nodes/pi?`) ||
		!strings.Contains(found[0].String(), "answers no list of this kind") {
		t.Errorf("got %+v", found)
	}
	// Another error says nothing about objects.
	if keys := damagedKeys(errors.New("disk is full")); keys != nil {
		t.Errorf("got %v", keys)
	}
	tooMany := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError, Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
		{Field: "/registry/configmaps/a"}, {Type: metav1.CauseTypeTooMany},
	}}}}
	if keys := damagedKeys(tooMany); keys != nil {
		t.Errorf("got %v", keys)
	}
}

// TestServedVersion wants the command for a damaged object to name a version that is served.
func TestServedVersion(t *testing.T) {
	custom := &unstructured.Unstructured{}
	custom.SetAPIVersion("example.com/v1beta2")
	for want, test := range map[string]struct {
		resource string
		example  runtime.Object
	}{
		"v1":      {"configmaps", &api.ConfigMap{}},
		"v2":      {"horizontalpodautoscalers.autoscaling", &autoscaling.HorizontalPodAutoscaler{}},
		"v1beta2": {"widgets.example.com", custom},
	} {
		if got := servedVersion(schema.ParseGroupResource(test.resource), test.example); got != want {
			t.Errorf("%s: got %s, want %s", test.resource, got, want)
		}
	}
}
