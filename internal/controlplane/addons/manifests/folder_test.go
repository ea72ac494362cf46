package manifests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// cluster is an API with ConfigMaps and Namespaces. It holds the objects that were
// applied last.
type cluster struct {
	t       *testing.T
	objects map[string]*unstructured.Unstructured
	refused string // the name of the object that is refused
	writes  []string
}

func key(namespace, name string) string { return namespace + "/" + name }

// client returns a client of the cluster.
func (c *cluster) client() *fake.FakeDynamicClient {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{configMaps: "ConfigMapList"})
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action := action.(type) {
		case clienttesting.PatchActionImpl:
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(action.Patch); err != nil {
				c.t.Fatal(err)
			}
			if action.Name == c.refused {
				return true, nil, errors.New("refused")
			}
			object.SetUID(types.UID(key(action.Namespace, action.Name)))
			c.objects[key(action.Namespace, action.Name)] = object
			c.writes = append(c.writes, "apply "+action.Name)
			return true, object, nil
		case clienttesting.DeleteActionImpl:
			delete(c.objects, key(action.Namespace, action.Name))
			c.writes = append(c.writes, "delete "+action.Name)
			return true, nil, nil
		case clienttesting.GetActionImpl:
			if object := c.objects[key(action.Namespace, action.Name)]; object != nil {
				return true, object, nil
			}
			return true, nil, apierrors.NewNotFound(configMaps.GroupResource(), action.Name)
		case clienttesting.ListActionImpl:
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMapList"})
			for _, object := range c.objects {
				if action.ListRestrictions.Labels.Matches(labelsOf(object)) {
					list.Items = append(list.Items, *object)
				}
			}
			return true, list, nil
		}
		c.t.Errorf("unexpected %v", action)
		return true, nil, nil
	})
	return client
}

type labelSet map[string]string

func labelsOf(object *unstructured.Unstructured) labelSet { return object.GetLabels() }

func (l labelSet) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labelSet) Get(name string) string            { return l[name] }
func (l labelSet) Lookup(name string) (string, bool) { value, ok := l[name]; return value, ok }

// names returns the names of the objects in the cluster, except the sets.
func (c *cluster) names() (names []string) {
	for name := range c.objects {
		if !strings.HasPrefix(name, "kube-system/manifest-") {
			names = append(names, strings.TrimPrefix(name, "default/"))
		}
	}
	slices.Sort(names)
	return names
}

// term begins a term of a server with a folder.
func (c *cluster) term(folder, server string, disable ...string) (*keeper, *record.FakeRecorder) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	log := logrus.New()
	log.SetOutput(c.t.Output())
	k := newKeeper(Config{Path: folder, Server: server, Disable: disable}, c.client(), log.WithField("server", server))
	events := record.NewFakeRecorder(100)
	k.discover = func() meta.RESTMapper { return mapper }
	k.recorder = func() record.EventRecorder { return events }
	return k, events
}

func write(t *testing.T, folder, name string, objects ...string) {
	t.Helper()
	var text strings.Builder
	for _, object := range objects {
		text.WriteString("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + object + "}\n")
	}
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func drop(t *testing.T, folder, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(folder, name)); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) has(k *keeper, want ...string) {
	c.t.Helper()
	k.sync(context.Background())
	if names := c.names(); !slices.Equal(names, want) {
		c.t.Errorf("the cluster has %v, want %v", names, want)
	}
}

// TestFiles adds, changes, moves and deletes files.
func TestFiles(t *testing.T) {
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	k, _ := c.term(folder, "a")
	c.has(k)
	write(t, folder, "x.yaml", "one", "two")
	c.has(k, "one", "two")
	c.writes = nil
	c.has(k, "one", "two")
	if len(c.writes) > 0 {
		t.Errorf("nothing has changed, and it did %v", c.writes)
	}
	write(t, folder, "x.yaml", "one", "three")
	c.has(k, "one", "three")
	// Both directions are tested, because files are applied in the order of their
	// names.
	write(t, folder, "x.yaml", "three")
	write(t, folder, "y.yaml", "one")
	c.writes = nil
	c.has(k, "one", "three")
	write(t, folder, "x.yaml", "one", "three")
	write(t, folder, "y.yaml", "four")
	c.has(k, "four", "one", "three")
	drop(t, folder, "x.yaml")
	write(t, folder, "a.yaml", "one", "three")
	c.has(k, "four", "one", "three")
	for _, did := range c.writes {
		if strings.HasPrefix(did, "delete") && did != "delete "+setName("x.yaml") {
			t.Errorf("an object that moved to another file was deleted: %v", c.writes)
		}
	}
	write(t, folder, "a.yaml")
	drop(t, folder, "y.yaml")
	c.has(k)
}

// TestTerms has servers lead in turn.
func TestTerms(t *testing.T) {
	c, mine, others := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir(), t.TempDir()
	write(t, mine, "x.yaml", "one", "two")
	write(t, mine, "y.yaml", "three")
	k, _ := c.term(mine, "a")
	c.has(k, "one", "three", "two")
	// A file that another server does not have is not removed.
	k, _ = c.term(others, "b")
	c.has(k, "one", "three", "two")
	// A file that was deleted while kedge did not run is removed.
	write(t, mine, "x.yaml", "two")
	drop(t, mine, "y.yaml")
	k, _ = c.term(mine, "a")
	c.has(k, "two")
	// The objects of a disabled file are removed, whichever server had it.
	k, _ = c.term(others, "b", "x")
	c.has(k)
}

// TestFaults has files that cannot be applied, and wants the reasons.
func TestFaults(t *testing.T) {
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	k, events := c.term(folder, "a")
	write(t, folder, "x.yaml", "one", "two")
	c.has(k, "one", "two")
	says := func(words ...string) {
		t.Helper()
		select {
		case event := <-events.Events:
			for _, word := range append(words, filepath.Join(folder, "x.yaml")) {
				if !strings.Contains(event, word) {
					t.Errorf("no %q in %q", word, event)
				}
			}
		default:
			t.Error("nothing was said")
		}
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "x.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\na: [\n")
	c.has(k, "one", "two")
	says("Warning Failed", "document 2", "Correct the file")
	put("apiVersion: v1\nkind: ConfigMap\n")
	c.has(k, "one", "two")
	says("metadata.name")
	put("apiVersion: v1\nkind: ConfigMapList\nitems: [7]\n")
	c.has(k, "one", "two")
	says("ConfigMapList")

	// A file that ends in .json is told to have a fault of JSON.
	if err := os.WriteFile(filepath.Join(folder, "z.json"), []byte("{\n  \"kind\": \"x\"\n  \"b\": 1\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.has(k, "one", "two")
	if event := <-events.Events; !strings.Contains(event, "z.json") || !strings.Contains(event, "not JSON: line 3, column 3") {
		t.Errorf("got %q", event)
	}
	drop(t, folder, "z.json")

	// A file that is not regular does not keep the others from being applied.
	drop(t, folder, "x.yaml")
	if err := syscall.Mkfifo(filepath.Join(folder, "x.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "y.yaml", "other")
	c.has(k, "one", "other", "two")
	says("Warning Failed", "this is a FIFO", "Correct the file")
	drop(t, folder, "x.yaml")
	drop(t, folder, "y.yaml")
	if err := os.Symlink("nowhere/y.yaml", filepath.Join(folder, "y.yaml")); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "x.yaml", "one", "two")
	c.has(k, "one", "two")
	says("Normal Applied")

	// The first failure may pass in a moment and is not reported. The next one
	// is.
	c.refused = "three"
	write(t, folder, "x.yaml", "one", "three")
	if wait := k.sync(t.Context()); wait <= 0 || wait > firstRetry {
		t.Errorf("tries again in %s", wait)
	}
	c.has(k, "one", "two") // two is not pruned, because three was to take its place
	if len(events.Events) > 0 {
		t.Errorf("said %s", <-events.Events)
	}
	k.files["x.yaml"].next = time.Time{}
	c.has(k, "one", "two")
	says("ConfigMap default/three", "refused", "tries again")
	c.refused = ""
	k.files["x.yaml"].next = time.Time{}
	c.has(k, "one", "three")
	says("Normal Applied")

	put("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n")
	c.has(k, "one", "three")
	k.files["x.yaml"].next = time.Time{}
	c.has(k, "one", "three")
	says("no kind Thing", "CustomResourceDefinition")
}
