package manifests

import (
	"context"
	"errors"
	"maps"
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

// cluster is an API with ConfigMaps, and with the Services of Kubernetes and of Knative. It
// holds the objects that were applied last.
type cluster struct {
	t       *testing.T
	objects map[string]*unstructured.Unstructured
	refused string // the name of the object that is refused
	// refusals are the answers to the attempts to apply it, in turn.
	refusals []string
	writes   []string
}

var knative = schema.GroupVersion{Group: "serving.knative.dev", Version: "v1"}

// key names an object: ConfigMaps and Services by their namespaces and names, and others by
// their groups too.
func key(resource schema.GroupVersionResource, namespace, name string) string {
	text := namespace + "/" + name
	if resource.Group != "" {
		text = resource.Group + "/" + text
	}
	return text
}

// client returns a client of the cluster.
func (c *cluster) client() *fake.FakeDynamicClient {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		configMaps: "ConfigMapList", {Version: "v1", Resource: "services"}: "ServiceList", knative.WithResource("services"): "ServiceList",
	})
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action := action.(type) {
		case clienttesting.PatchActionImpl:
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(action.Patch); err != nil {
				c.t.Fatal(err)
			}
			if action.Name == c.refused {
				c.refusals = append(c.refusals[1:], c.refusals[0])
				return true, nil, errors.New(c.refusals[0])
			}
			at := key(action.Resource, action.Namespace, action.Name)
			object.SetUID(types.UID(at))
			c.objects[at] = object
			c.writes = append(c.writes, "apply "+action.Name)
			return true, object, nil
		case clienttesting.DeleteActionImpl:
			delete(c.objects, key(action.Resource, action.Namespace, action.Name))
			c.writes = append(c.writes, "delete "+action.Name)
			return true, nil, nil
		case clienttesting.GetActionImpl:
			if object := c.objects[key(action.Resource, action.Namespace, action.Name)]; object != nil {
				return true, object, nil
			}
			return true, nil, apierrors.NewNotFound(configMaps.GroupResource(), action.Name)
		case clienttesting.ListActionImpl:
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(action.Kind.GroupVersion().WithKind(action.Kind.Kind + "List"))
			for _, object := range c.objects {
				is, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
				if is.GroupResource() == action.Resource.GroupResource() && action.ListRestrictions.Labels.Matches(labelsOf(object)) {
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
	beta := schema.GroupVersion{Group: knative.Group, Version: "v1beta1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion, knative, beta})
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Service"), knative.WithKind("Service"), beta.WithKind("Service"),
	} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	log := logrus.New()
	log.SetOutput(c.t.Output())
	k := newKeeper(Config{Path: folder, Server: server, Disable: disable}, c.client(), log.WithField("server", server))
	events := record.NewFakeRecorder(100)
	k.discover = func() meta.RESTMapper { return mapper }
	k.recorder = func() record.EventRecorder { return events }
	return k, events
}

// write writes a file of ConfigMaps. An object VERSION/KIND/NAME is of another kind.
func write(t *testing.T, folder, name string, objects ...string) {
	t.Helper()
	var text strings.Builder
	for _, object := range objects {
		version, kind := "v1", "ConfigMap"
		if i := strings.LastIndex(object, "/Service/"); i >= 0 {
			version, kind, object = object[:i], "Service", object[i+len("/Service/"):]
		}
		text.WriteString("---\napiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: " + object + "}\n")
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

// TestKindsOfOneName has kinds of two groups that have one name, and objects of these kinds that
// have one name too.
func TestKindsOfOneName(t *testing.T) {
	const ours, theirs = "v1/Service/hello", "serving.knative.dev/v1/Service/hello"
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	k, events := c.term(folder, "a")
	write(t, folder, "core.yaml", ours, "one")
	write(t, folder, "knative.yaml", theirs)
	c.has(k, "hello", "one", "serving.knative.dev/default/hello")
	if len(events.Events) > 0 {
		t.Errorf("said %s", <-events.Events)
	}
	// The other group's object does not keep this one.
	write(t, folder, "core.yaml", "one")
	c.has(k, "one", "serving.knative.dev/default/hello")
	write(t, folder, "core.yaml", ours, "one")
	c.has(k, "hello", "one", "serving.knative.dev/default/hello")
	drop(t, folder, "knative.yaml")
	c.has(k, "hello", "one")
	// Both in one file.
	write(t, folder, "core.yaml", ours, theirs)
	c.has(k, "hello", "serving.knative.dev/default/hello")
	write(t, folder, "core.yaml", theirs)
	c.has(k, "serving.knative.dev/default/hello")
	// Another version of the kind is the same object.
	c.writes = nil
	write(t, folder, "core.yaml", "serving.knative.dev/v1beta1/Service/hello")
	c.has(k, "serving.knative.dev/default/hello")
	write(t, folder, "other.yaml", theirs)
	c.has(k, "serving.knative.dev/default/hello")
	if event := <-events.Events; !strings.Contains(event, "Service.serving.knative.dev default/hello is also in core.yaml") {
		t.Errorf("said %s", event)
	}
	// The file that waits for another one is tried when that one changes.
	write(t, folder, "core.yaml", "one")
	c.has(k, "one", "serving.knative.dev/default/hello")
	if k.files["other.yaml"].failures > 0 {
		t.Error("other.yaml still waits")
	}
	for _, did := range c.writes {
		if strings.HasPrefix(did, "delete") {
			t.Errorf("did %v, and the object only moved", c.writes)
		}
	}
}

// TestEarlierRecord reads the ConfigMap of a file as kedge v1.36 has written it, and removes what
// was taken out of the file since.
func TestEarlierRecord(t *testing.T) {
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	const record = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "manifest-x.yaml", "namespace": "kube-system",
		"labels": {"applyset.kubernetes.io/id": "` + earlierID + `"}, "annotations": {
			"applyset.kubernetes.io/tooling": "kedge/v1", "applyset.kubernetes.io/contains-group-kinds": "Service,Service.serving.knative.dev",
			"kedge.dev/manifest": "x.yaml", "kedge.dev/server": "a"}}}`
	for at, text := range map[string]string{
		"kube-system/manifest-x.yaml": record,
		"default/hello": `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hello", "namespace": "default", "uid": "1",
			"labels": {"applyset.kubernetes.io/part-of": "` + earlierID + `"}}}`,
		"serving.knative.dev/default/hello": `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "hello", "namespace": "default", "uid": "2",
			"labels": {"applyset.kubernetes.io/part-of": "` + earlierID + `"}}}`,
	} {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		c.objects[at] = object
	}
	k, _ := c.term(folder, "a")
	write(t, folder, "x.yaml", "serving.knative.dev/v1/Service/hello")
	c.has(k, "serving.knative.dev/default/hello")
	drop(t, folder, "x.yaml")
	k, _ = c.term(folder, "a")
	c.has(k)
}

// earlierID is the ID of the ApplySet of the file x.yaml.
const earlierID = "applyset-rc9WuyoRdPuZklkZikl4GYi-NxrWh36AW9MeM1H7HY0-v1"

// TestNotObjects has files that kedge will never apply, and wants that said once.
func TestNotObjects(t *testing.T) {
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	k, events := c.term(folder, "a")
	for name, file := range map[string]struct {
		text  string
		words []string
	}{
		"kustomization.yaml":      {"resources: [web.yaml]\n", []string{"Warning Ignored", "a file of kustomize", "kedge kubectl kustomize FOLDER > " + folder + "/NAME.yaml"}},
		"app/kustomization.yml":   {"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [web.yaml]\n", []string{"Warning Ignored", "a file of kustomize"}},
		"part.yaml":               {"apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nmetadata: {name: a}\n", []string{"Warning Ignored", "a file of kustomize"}},
		"flux/kustomization.yaml": {"apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n", []string{"Warning Failed", "Kustomization.kustomize.toolkit.fluxcd.io", "it has no metadata.name"}},
		"job.yaml": {"apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: once-}\n",
			[]string{"Warning Failed", "object 1 (Job.batch)", "metadata.generateName: once-", "one more object each time", "kedge kubectl create --filename="}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(folder, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(file.text), 0o600)); err != nil {
				t.Fatal(err)
			}
			wait := k.sync(t.Context())
			event := <-events.Events
			for _, word := range append(file.words, path+": ") {
				if !strings.Contains(event, word) {
					t.Errorf("no %q in %q", word, event)
				}
			}
			k.sync(t.Context())
			if len(events.Events) > 0 {
				t.Errorf("said again: %s", <-events.Events)
			}
			if retries := wait > 0; retries == strings.Contains(event, "Ignored") {
				t.Errorf("tries again is %v after %q", retries, event)
			}
			drop(t, folder, name)
			k.sync(t.Context())
		})
	}
	if len(c.writes) > 0 {
		t.Errorf("did %v", c.writes)
	}
}

// TestChangingOrder has an API that lists the same faults in another order each time.
func TestChangingOrder(t *testing.T) {
	c, folder := &cluster{t: t, objects: map[string]*unstructured.Unstructured{}}, t.TempDir()
	c.refused, c.refusals = "one", []string{
		"failed to create typed patch object: errors:\n  .spec.a: field not declared in schema\n  .spec.b: expected string",
		"failed to create typed patch object: errors:\n  .spec.b: expected string\n  .spec.a: field not declared in schema",
		"failed to create typed patch object: errors:\n  .spec.c: field not declared in schema\n  .spec.b: expected string",
	}
	k, events := c.term(folder, "a")
	write(t, folder, "x.yaml", "one")
	said := map[string]int{}
	for range 4 {
		k.sync(t.Context())
		k.files["x.yaml"].next = time.Time{}
	}
	for range len(events.Events) {
		said[<-events.Events]++
	}
	if len(said) != 1 || said[slices.Collect(maps.Keys(said))[0]] != 3 {
		t.Errorf("said %v, want one text three times", said)
	}
	// A changed file may have the same words in another order, and another fault.
	write(t, folder, "x.yaml", "one", "two")
	k.sync(t.Context())
	k.files["x.yaml"].next = time.Time{}
	k.sync(t.Context())
	k.files["x.yaml"].next = time.Time{}
	k.sync(t.Context())
	for range len(events.Events) {
		said[<-events.Events]++
	}
	if len(said) > 2 {
		t.Errorf("said %v, want at most two texts", said)
	}
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
	c.refused, c.refusals = "three", []string{"refused"}
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
