package customresources

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// next returns the next event of a watch that is not a bookmark.
func (c *cluster) next(w watch.Interface) watch.Event {
	c.Helper()
	for event := range w.ResultChan() {
		if event.Type != watch.Bookmark {
			return event
		}
	}
	c.Fatal("the watch has ended")
	return watch.Event{}
}

// color returns the field that has a default.
func color(object any) string {
	text, _, _ := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "spec", "color")
	return text
}

// TestReadsOfAKindWithoutObjects wants the full handler not to remember a kind that has no
// objects when a client reads it. The client's watch must show all later changes, as the
// full handler shows them.
func TestReadsOfAKindWithoutObjects(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx := t.Context()
	client := c.Resource(widgets)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 0 || list.GetResourceVersion() == "" || list.GetKind() != "WidgetList" {
		t.Errorf("the list is %v. It must be empty and have a resource version", list)
	}
	watches := map[string]watch.Interface{}
	for name, options := range map[string]metav1.ListOptions{
		"everything":     {ResourceVersion: list.GetResourceVersion(), AllowWatchBookmarks: true},
		"initial events": {SendInitialEvents: ptr(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
		"selected field": {ResourceVersion: list.GetResourceVersion(), FieldSelector: "spec.color=red"},
	} {
		if watches[name], err = client.Watch(ctx, options); err != nil {
			t.Fatalf("watch %s: %v", name, err)
		}
		defer watches[name].Stop()
	}
	other := widgets
	other.Version = "v2"
	if watches["other version"], err = c.Resource(other).Namespace("a").Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}); err != nil {
		t.Fatal(err)
	}
	defer watches["other version"].Stop()
	if err := client.Namespace("a").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.Namespace("a").Get(ctx, "none", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), `widgets.example.com "none" not found`) {
		t.Errorf("get of no object: %v", err)
	}
	if known(c.full) {
		t.Error("the full handler remembers a kind of which there is no object")
	}

	created, err := client.Namespace("a").Create(ctx, widget("one", map[string]any{"size": int64(1), "unknown": true}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !known(c.full) {
		t.Error("the full handler did not serve a create")
	}
	for name, w := range watches {
		event := c.next(w)
		object, ok := event.Object.(*unstructured.Unstructured)
		if event.Type != watch.Added || !ok || color(object) != "red" || object.GetResourceVersion() != created.GetResourceVersion() {
			t.Errorf("watch %s got %v", name, event)
			continue
		}
		_, hasSize, _ := unstructured.NestedInt64(object.Object, "spec", "size")
		if want := name != "other version"; hasSize != want || (object.GetAPIVersion() == "example.com/v1") != want {
			t.Errorf("watch %s got %v, which is not of its version", name, object)
		}
	}
	// The schema has changed, which upstream applies to stored objects too.
	c.define(widgetDefinition("1", 2, "blue"))
	if _, err := client.Namespace("a").Patch(ctx, "one", "application/merge-patch+json", []byte(`{"spec":{"color":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := c.next(watches["everything"]); event.Type != watch.Modified || color(event.Object) != "blue" {
		t.Errorf("after a change of the schema, the watch got %v", event)
	}
	if err := client.Namespace("a").Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := c.next(watches["everything"]); event.Type != watch.Deleted {
		t.Errorf("after a delete, the watch got %v", event)
	}
}

// ask returns the status, the header and the body of an answer.
func ask(t *testing.T, method, url string, header map[string]string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(answer.Header.Get("Content-Type"), "protobuf") {
		body = nil // it has a resource version
	}
	for _, name := range []string{"Audit-Id", "Date", "Content-Length"} {
		answer.Header.Del(name)
	}
	text := volatile.ReplaceAllString(string(body), "…")
	return fmt.Sprintln(answer.Status, answer.Header, strings.ReplaceAll(text, "}…", "}"))
}

// volatile are the parts of answers that differ from one request to the next, such as
// further bookmarks.
var volatile = regexp.MustCompile(`"resourceVersion":"\d+"|\(\d+\)|\n\{"type":"BOOKMARK","object":\{[^{}]*\{"resourceVersion":"\d+"\}\}\}`)

// The light handler answers as the full one does.
func TestLightAnswersAsFull(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	const all, inNamespace = "/apis/example.com/v1/widgets", "/apis/example.com/v1/namespaces/a/widgets"
	table := map[string]string{"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
	metadata := map[string]string{"Accept": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
	var urls []string
	for _, b := range []*backend{c.full, c.light} {
		server := httptest.NewServer(asUser(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer b.enter("widgets.example.com")()
			b.upstream.ServeHTTP(w, r)
		})))
		defer server.Close()
		urls = append(urls, server.URL)
	}
	check := func(t *testing.T) {
		// A watch cache answers when it is filled.
		c.until("the full handler answers", func() bool { return strings.HasPrefix(ask(t, "GET", urls[0]+all, nil), "200") })
		for _, test := range []struct {
			method, path string
			header       map[string]string
		}{
			{method: "GET", path: all},
			{method: "GET", path: all, header: table},
			{method: "GET", path: all, header: metadata},
			{method: "GET", path: all, header: map[string]string{"Accept": "application/yaml"}},
			{method: "GET", path: all, header: map[string]string{"Accept": "text/html"}},
			{method: "GET", path: all + "?limit=1"},
			{method: "GET", path: all + "?resourceVersion=0"},
			{method: "GET", path: all + "?resourceVersion=1&resourceVersionMatch=NotOlderThan"},
			{method: "GET", path: all + "?resourceVersion=x"},
			{method: "GET", path: all + "?resourceVersionMatch=Exact"},
			{method: "GET", path: all + "?labelSelector=a%3Db"},
			{method: "GET", path: all + "?labelSelector=%21%21"},
			{method: "GET", path: all + "?fieldSelector=spec.color%3Dred"},
			{method: "GET", path: all + "?fieldSelector=spec.size%3D1"},
			{method: "GET", path: all + "?continue=x"},
			{method: "GET", path: all + "?watch=1&resourceVersion=x"},
			{method: "GET", path: all + "?watch=1&sendInitialEvents=true"},
			{method: "GET", path: all + "?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"},
			{method: "GET", path: inNamespace},
			{method: "GET", path: inNamespace + "/none"},
			{method: "GET", path: inNamespace + "/one"},
			{method: "GET", path: inNamespace + "/one", header: table},
			{method: "GET", path: "/apis/example.com/v2/namespaces/a/widgets/one"},
			{method: "GET", path: "/apis/example.com/v2/widgets", header: table},
			{method: "GET", path: "/apis/example.com/v3/widgets"},
			{method: "GET", path: all + "/none"},
			{method: "DELETE", path: inNamespace + "?dryRun=All"},
			{method: "DELETE", path: inNamespace + "?propagationPolicy=None"},
			{method: "DELETE", path: all},
		} {
			var answers [2]string
			for i, url := range urls {
				answers[i] = ask(t, test.method, url+test.path, test.header)
			}
			if answers[0] != answers[1] {
				t.Errorf("%s %s: the full handler answers\n%s\nthe light one\n%s", test.method, test.path, answers[0], answers[1])
			}
		}
	}
	t.Run("without objects", check)
	if _, err := c.Resource(widgets).Namespace("a").Create(t.Context(), widget("one", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Run("with an object", check)
	c.define(widgetDefinition("1", 2, "blue"))
	t.Run("with another schema", check)
}

// The full handler forgets a kind that nobody uses, and serves it again later. Nothing is
// forgotten while a request lasts.
func TestForget(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx := t.Context()
	client := c.Resource(widgets).Namespace("a")
	if _, err := client.Create(ctx, widget("one", map[string]any{}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	age(c.full)
	if known(c.full) || len(c.full.stores) != 2 {
		t.Errorf("the full handler has %v and %d stores, which upstream destroys after a second", slices.Collect(maps.Keys(c.full.kinds)), len(c.full.stores))
	}
	one, err := client.Get(ctx, "one", metav1.GetOptions{})
	if err != nil || color(one) != "red" {
		t.Fatalf("after the full handler forgot the kind, got %v, %v", one, err)
	}
	settle(c.full)
	if _, err := client.List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: one.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	age(c.full)
	age(c.light)
	if known(c.light) {
		t.Error("the light handler serves a watch of a kind that the full one remembers")
	}
	if !known(c.full) {
		t.Error("the full handler forgot a kind that is watched")
	}
	if err := client.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := c.next(w); event.Type != watch.Deleted {
		t.Errorf("the watch got %v", event)
	}
}

// The watches of informers do not keep a kind in the memory of the full handler. It ends
// them, and the light handler continues them.
func TestQuietKind(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx := t.Context()
	client := c.Resource(widgets).Namespace("a")
	one, err := client.Create(ctx, widget("one", map[string]any{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	informer := metav1.ListOptions{ResourceVersion: one.GetResourceVersion(), AllowWatchBookmarks: true}
	follow := func() watch.Interface {
		t.Helper()
		w, err := client.Watch(ctx, informer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	settle(c.full)
	var watches []watch.Interface
	for range fewWatches {
		watches = append(watches, follow())
	}
	quiet(c.full)
	// An informer that begins its watch does not use the kind.
	watches = append(watches, follow())
	c.full.sweep()
	if got := watching(c.full); got != fewWatches+1 {
		t.Fatalf("%d watches are left, although the light handler cannot take all %d", got, fewWatches+1)
	}
	watches[0].Stop()
	for _, w := range watches {
		for range w.ResultChan() {
		}
	}
	c.until("the full handler has forgotten the kind", func() bool { return !known(c.full) })
	w := follow()
	if known(c.full) {
		t.Error("an informer that continued its watch made the full handler remember the kind")
	}
	if _, err := client.Patch(ctx, "one", "application/merge-patch+json", []byte(`{"spec":{"size":7}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := c.next(w); event.Type != watch.Modified || color(event.Object) != "red" {
		t.Errorf("the continued watch got %v", event)
	}
}

// A change that another server has made counts as use of a kind.
func TestChangeOfAnotherServer(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	ctx := t.Context()
	client := c.Resource(widgets).Namespace("a")
	one, err := client.Create(ctx, widget("one", map[string]any{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	settle(c.full)
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: one.GetResourceVersion(), AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	quiet(c.full)
	stored, err := c.datastore.Get(ctx, "/registry/example.com/widgets/a/one")
	if err != nil || len(stored.Kvs) != 1 {
		t.Fatalf("the datastore has %v, %v", stored, err)
	}
	if _, err := c.datastore.Put(ctx, "/registry/example.com/widgets/a/one", string(stored.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if event := c.next(w); event.Type != watch.Modified {
		t.Errorf("the watch got %v", event)
	}
	c.full.sweep()
	if watching(c.full) != 1 {
		t.Error("the full handler ended a watch just after a change")
	}
}

// Watches end with the definition, in both handlers.
func TestWatchesEndWithTheDefinition(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	w, err := c.Resource(widgets).Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	c.undefine("widgets.example.com")
	for range w.ResultChan() {
	}
	if _, err := c.Resource(widgets).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a kind without a definition is served")
	}
	c.define(widgetDefinition("2", 1, "green"))
	one, err := c.Resource(widgets).Namespace("a").Create(t.Context(), widget("one", map[string]any{}), metav1.CreateOptions{})
	if err != nil || color(one) != "green" {
		t.Errorf("a new definition of the name gives %v, %v", one, err)
	}
}

// TestUnused wants a kind to be unused only while it is defined and has no objects.
func TestUnused(t *testing.T) {
	c := newTestCluster(t)
	ctx, resource := t.Context(), widgets.GroupResource()
	if c.Unused(ctx, resource) {
		t.Error("a kind without a definition is unused: it may be built in")
	}
	c.define(widgetDefinition("1", 1, "red"))
	if !c.Unused(ctx, resource) {
		t.Error("a kind without objects is not unused")
	}
	if _, err := c.Resource(widgets).Namespace("a").Create(ctx, widget("first", map[string]any{}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if c.Unused(ctx, resource) {
		t.Error("a kind with an object is unused")
	}
}

// Other requests are for the server behind.
func TestRest(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	c.rest = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "rest") })
	for path, want := range map[string]bool{
		"/apis/example.com":           true,
		"/apis/example.com/v1":        true,
		"/apis/example.com/v1/others": true,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widget": true,
		"/apis/example.com/v1/widgets":                                   false,
	} {
		recorder := httptest.NewRecorder()
		asUser(c.Handler).ServeHTTP(recorder, httptest.NewRequestWithContext(context.Background(), "GET", path, nil))
		if got := recorder.Body.String() == "rest"; got != want {
			t.Errorf("%s goes to the server behind: %v, want %v", path, got, want)
		}
	}
}

func ptr[T any](value T) *T { return &value }
