package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// restOfV2 are two versions of the aggregator's own document.
var restOfV2 = []string{
	`{"swagger":"2.0","info":{"title":"","version":""},"paths":{"/apis/ex.io/v1/foos":{"get":{"responses":{"200":{"description":"OK"}}}}}}`,
	`{"swagger":"2.0","info":{"title":"","version":""},"paths":{"/apis/ex.io/v1/bars":{"get":{"responses":{"200":{"description":"OK"}}}}}}`,
}

// chain is a server with documents, as the apiserver package makes it, together
// with upstream's server of the same documents.
type chain struct {
	handler  http.Handler
	upstream *mux.PathRecorderMux
	// defined adds a CustomResourceDefinition.
	defined func(*apiextensionsv1.CustomResourceDefinition)
	// changed makes the aggregator serve the second version.
	changed func()
	merges  func() int
}

func newChain(t *testing.T) *chain {
	t.Helper()
	core := newTestServer(t, "/apis/apiextensions.k8s.io/v1", "/apis/apiextensions.k8s.io")
	extensions := newTestServer(t, "/apis/apiextensions.k8s.io/v1beta1")
	c := &chain{upstream: mux.NewPathRecorderMux("upstream")}
	all := restful.NewContainer()
	for _, server := range []Server{core, extensions} {
		for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
			all.Add(service)
		}
	}
	eager := newTestServer(t)
	routes.OpenAPI{Config: eager.V2}.InstallV2(all, c.upstream)
	routes.OpenAPI{V3Config: eager.V3}.InstallV3(all, c.upstream)

	documents := &Documents{}
	informer := externalversions.NewSharedInformerFactory(fake.NewClientset(), 0).Apiextensions().V1().CustomResourceDefinitions()
	if err := documents.Install(core, extensions, informer, featuregate.NewFeatureGate()); err != nil {
		t.Fatal(err)
	}
	c.defined = func(d *apiextensionsv1.CustomResourceDefinition) {
		if err := informer.Informer().GetStore().Add(d); err != nil {
			t.Fatal(err)
		}
		documents.custom.changed.Store(true)
	}
	var mu sync.Mutex
	rest, merges := 0, 0
	c.changed = func() { mu.Lock(); defer mu.Unlock(); rest++ }
	c.merges = func() int { mu.Lock(); defer mu.Unlock(); return merges }
	c.handler = documents.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != v2Path {
			core.Handler.NonGoRestfulMux.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Etag", restOfV2[rest][70:])
		if r.Header.Get("If-None-Match") == restOfV2[rest][70:] {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		merges++
		io.WriteString(w, restOfV2[rest])
	}))
	return c
}

// newTestServer serves CustomResourceDefinitions at each of the paths.
func newTestServer(t *testing.T, paths ...string) Server {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	namer := apiopenapi.NewDefinitionNamer(scheme)
	v2 := genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	v3 := genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	v2.Info.Version, v3.Info.Version = "1.36", "1.36"
	container := restful.NewContainer()
	for _, path := range paths {
		service := new(restful.WebService).Path(path).Produces("application/json")
		operation := "read" + strings.NewReplacer("/", "", ".", "").Replace(path)
		service.Route(service.GET("/customresourcedefinitions").To(func(*restful.Request, *restful.Response) {}).Operation(operation).
			Param(service.QueryParameter("limit", "how many")).
			Writes(apiextensionsv1.CustomResourceDefinition{}).Returns(http.StatusOK, "OK", apiextensionsv1.CustomResourceDefinition{}))
		container.Add(service)
	}
	return Server{V2: v2, V3: v3, GenericAPIServer: &genericapiserver.GenericAPIServer{Handler: &genericapiserver.APIServerHandler{
		GoRestfulContainer: container, NonGoRestfulMux: mux.NewPathRecorderMux("test"),
	}}}
}

func get(handler http.Handler, url string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func decode(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var decoded map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &decoded); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d: %v: %.200s", w.Code, err, w.Body)
	}
	return decoded
}

// TestV3 compares everything that clients see, except the hash, with upstream's
// documents.
func TestV3(t *testing.T) {
	c := newChain(t)
	var ours, theirs handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(get(c.handler, v3Path).Body.Bytes(), &ours); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(get(c.upstream, v3Path).Body.Bytes(), &theirs); err != nil {
		t.Fatal(err)
	}
	if names, want := slices.Sorted(maps.Keys(ours.Paths)), slices.Sorted(maps.Keys(theirs.Paths)); len(names) != 3 || !slices.Equal(names, want) {
		t.Fatalf("discovered %q, want %q", names, want)
	}
	for name := range ours.Paths {
		url, want := ours.Paths[name].ServerRelativeURL, theirs.Paths[name].ServerRelativeURL
		for _, accept := range []string{"", "application/json", "text/plain, */*;q=0.1",
			"application/com.github.proto-openapi.spec.v3@v1.0+protobuf", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", "text/plain"} {
			got, want := get(c.handler, url, "Accept", accept), get(c.upstream, want, "Accept", accept)
			if got.Code != want.Code || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) {
				t.Errorf("%s as %q: status %d, %d bytes; want %d, %d", name, accept, got.Code, got.Body.Len(), want.Code, want.Body.Len())
			}
			for _, header := range []string{"Content-Type", "Vary", "Cache-Control"} {
				if got, want := got.Header().Values(header), want.Header().Values(header); !slices.Equal(got, want) {
					t.Errorf("%s as %q: %s: %q, want %q", name, accept, header, got, want)
				}
			}
		}
		etag := get(c.handler, url).Header().Get("Etag")
		if w := get(c.handler, url, "If-None-Match", etag); w.Code != http.StatusNotModified {
			t.Errorf("%s again: status %d", name, w.Code)
		}
		path, _, _ := strings.Cut(url, "?")
		if w := get(c.handler, path+"?hash=OLD"); w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != url {
			t.Errorf("%s with an old hash: status %d to %s, want %s", name, w.Code, w.Header().Get("Location"), url)
		}
		if w := get(c.handler, path); w.Code != http.StatusOK || w.Header().Get("Expires") != "" {
			t.Errorf("%s without a hash: status %d, expires %q", name, w.Code, w.Header().Get("Expires"))
		}
	}
	if w := get(c.handler, v3Path+"/apis/no/v1"); w.Code != http.StatusNotFound {
		t.Errorf("unknown version: status %d", w.Code)
	}
}

// TestHash wants the same hash after a restart, and another one when something
// that goes into a document has changed.
func TestHash(t *testing.T) {
	services := newTestServer(t, "/apis/a/v1", "/apis/b/v1").Handler.GoRestfulContainer.RegisteredWebServices()
	again := newTestServer(t, "/apis/a/v1").Handler.GoRestfulContainer.RegisteredWebServices()
	same := hash([]byte("x"), services[0])
	if got := hash([]byte("x"), again[0]); got != same {
		t.Errorf("after another start: got hash %s, want %s", got, same)
	}
	if hash([]byte("y"), services[0]) == same {
		t.Error("other libraries, same hash")
	}
	if hash([]byte("x"), services[1]) == same {
		t.Error("other service, same hash")
	}
	again[0].Route(again[0].GET("/more").To(func(*restful.Request, *restful.Response) {}))
	if hash([]byte("x"), again[0]) == same {
		t.Error("one route more, same hash")
	}
}

func TestV2(t *testing.T) {
	c := newChain(t)
	first := get(c.handler, v2Path)
	document, want := decode(t, first), decode(t, get(c.upstream, v2Path))
	paths, wantPaths := document["paths"].(map[string]any), want["paths"].(map[string]any)
	if _, merged := paths["/apis/ex.io/v1/foos"]; !merged || len(paths) != len(wantPaths)+1 {
		t.Errorf("paths %q, want upstream's %q and the custom one", slices.Sorted(maps.Keys(paths)), slices.Sorted(maps.Keys(wantPaths)))
	}
	delete(paths, "/apis/ex.io/v1/foos")
	if !reflect.DeepEqual(document, want) {
		t.Error("the document is not upstream's")
	}

	if w := get(c.handler, v2Path, "If-None-Match", first.Header().Get("Etag")); w.Code != http.StatusNotModified || c.merges() != 1 {
		t.Errorf("ask again with the ETag: got status %d after %d merges, want 304 after 1", w.Code, c.merges())
	}
	head := httptest.NewRecorder()
	c.handler.ServeHTTP(head, httptest.NewRequest(http.MethodHead, v2Path, nil))
	if head.Code != http.StatusOK || head.Body.Len() != 0 {
		t.Errorf("HEAD: status %d, %d bytes", head.Code, head.Body.Len())
	}
	zipped, err := gzip.NewReader(get(c.handler, v2Path, "Accept-Encoding", "gzip").Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(zipped); err != nil || !bytes.Equal(text, first.Body.Bytes()) {
		t.Errorf("compressed: %v, other text: %t", err, !bytes.Equal(text, first.Body.Bytes()))
	}
	const protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	for _, accept := range []string{protobuf, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"} {
		if w := get(c.handler, v2Path, "Accept", accept); w.Code != http.StatusOK || w.Header().Get("Content-Type") != protobuf {
			t.Errorf("Accept %s: got status %d, %s, want 200, protobuf", accept, w.Code, w.Header().Get("Content-Type"))
		}
	}
	if w := get(c.handler, v2Path, "Accept", "text/plain"); w.Code != http.StatusNotAcceptable {
		t.Errorf("Accept text/plain: got status %d, want 406", w.Code)
	}

	c.changed()
	changed := get(c.handler, v2Path, "If-None-Match", first.Header().Get("Etag"))
	paths = decode(t, changed)["paths"].(map[string]any)
	if paths["/apis/ex.io/v1/bars"] == nil || paths["/apis/ex.io/v1/foos"] != nil {
		t.Errorf("after a change: got paths %q, want bars and not foos", slices.Sorted(maps.Keys(paths)))
	}
	c.defined(readDefinitions(t)[0])
	defined := get(c.handler, v2Path, "If-None-Match", changed.Header().Get("Etag"))
	paths = decode(t, defined)["paths"].(map[string]any)
	if paths["/apis/ex.io/v1/bars"] == nil || paths["/apis/birds.example/v1beta1/sparrows"] == nil {
		t.Errorf("after a definition: got paths %q, want bars and sparrows", slices.Sorted(maps.Keys(paths)))
	}
	if w := get(c.handler, v2Path, "If-None-Match", defined.Header().Get("Etag")); w.Code != http.StatusNotModified || c.merges() != 3 {
		t.Errorf("ask again: got status %d after %d merges, want 304 after 3", w.Code, c.merges())
	}
}

// TestFirstRequestsTogether is meant for the race detector.
func TestFirstRequestsTogether(t *testing.T) {
	c := newChain(t)
	var clients sync.WaitGroup
	for range 4 {
		for _, url := range []string{v2Path, v3Path, v3Path + "/apis/apiextensions.k8s.io/v1", v3Path + "/apis/apiextensions.k8s.io/v1beta1"} {
			clients.Go(func() {
				if w := get(c.handler, url); w.Code != http.StatusOK || w.Body.Len() == 0 {
					t.Errorf("%s: status %d, %d bytes", url, w.Code, w.Body.Len())
				}
			})
		}
	}
	clients.Wait()
	if c.merges() != 1 {
		t.Errorf("merged %d times", c.merges())
	}
}

// TestLend wants upstream's schemas to be made, and wants them to be empty after
// the definitions were taken back.
func TestLend(t *testing.T) {
	definitionName := util.GetCanonicalTypeName(apiextensionsv1.CustomResourceDefinition{})
	want, err := builder3.BuildOpenAPIDefinitionsForResources(newTestServer(t).V3, definitionName)
	if err != nil {
		t.Fatal(err)
	}
	config := newTestServer(t).V3
	takeBack := Lend(config)
	got, err := builder3.BuildOpenAPIDefinitionsForResources(config, definitionName)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("other schemas than upstream's")
	}
	takeBack()
	for name, schema := range got {
		if len(schema.Properties) > 0 {
			t.Errorf("%s has still %d properties", name, len(schema.Properties))
		}
	}
	if config.Definitions != nil {
		t.Error("the configuration has still definitions")
	}
}

func TestResolver(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := NewResolver(others{}, generatedopenapi.GetOpenAPIDefinitions, scheme)
	for range 2 {
		resolved, err := r.ResolveSchema(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		if err != nil || len(resolved.Properties) != 5 {
			t.Errorf("built-in type: %v, %v", resolved, err)
		}
	}
	if resolved, err := r.ResolveSchema(schema.GroupVersionKind{Group: "ex.io", Version: "v1", Kind: "Foo"}); err != nil || resolved.Description != "Foo" {
		t.Errorf("other type: %v, %v", resolved, err)
	}
}

type others struct{}

func (others) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Description: kind.Kind}}, nil
}
