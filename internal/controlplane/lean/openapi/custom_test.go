package openapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapiv3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/kedge-dev/kedge/manifests"
)

// customChain serves documents of CustomResourceDefinitions.
type customChain struct {
	*custom
	client  *fake.Clientset
	handler *mux.PathRecorderMux
	// upstream is a server that upstream's controllers keep up to date.
	upstream *mux.PathRecorderMux
}

// newCustomChain must be called in a bubble of synctest.
func newCustomChain(t *testing.T) *customChain {
	t.Helper()
	var objects []runtime.Object
	for _, d := range readDefinitions(t) {
		objects = append(objects, d)
	}
	c := &customChain{custom: &custom{}, client: fake.NewClientset(objects...), handler: mux.NewPathRecorderMux("kedge"), upstream: mux.NewPathRecorderMux("upstream")}
	factory := externalversions.NewSharedInformerFactory(c.client, 0)
	informer := factory.Apiextensions().V1().CustomResourceDefinitions()
	if err := c.watch(informer, []byte("origin")); err != nil {
		t.Fatal(err)
	}
	c.handler.Handle(v3Path, c.first(c.versions.serveDiscovery))
	c.handler.HandlePrefix(v3Path+"/", c.first(c.versions.serveGroupVersion))

	static := &spec.Swagger{SwaggerProps: spec.SwaggerProps{Swagger: "2.0", Paths: &spec.Paths{Paths: map[string]spec.PathItem{}}, Definitions: spec.Definitions{}}}
	v2, v3 := handler.NewOpenAPIService(static), handler3.NewOpenAPIService()
	v2.RegisterOpenAPIVersionedService(v2Path, c.upstream)
	if err := v3.RegisterOpenAPIV3VersionedService(v3Path, c.upstream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go openapi.NewController(informer).Run(static, v2, ctx.Done())
	go openapiv3.NewController(informer).Run(v3, ctx.Done())
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		time.Sleep(time.Second) // fake time, in which all goroutines end
	})
	time.Sleep(time.Second) // fake time, in which the controllers look for the informer
	return c
}

// readDefinitions returns those of the test, and kedge's own.
func readDefinitions(t *testing.T) (definitions []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	contents := map[string][]byte{}
	var err error
	if contents["a"], err = os.ReadFile("testdata/definitions.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"snapshots.yaml", "helm.yaml", "local-storage/crds.yaml", "servicelb/pools.yaml"} {
		if contents[name], err = manifests.Files.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		content := contents[name]
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			d := &apiextensionsv1.CustomResourceDefinition{}
			if err := decoder.Decode(d); err == io.EOF {
				break
			} else if err != nil || d.Kind != "CustomResourceDefinition" {
				continue
			}
			if len(d.Status.Conditions) == 0 {
				d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
			}
			definitions = append(definitions, d)
		}
	}
	if len(definitions) < 8 {
		t.Fatalf("read only %d definitions", len(definitions))
	}
	return definitions
}

func (c *customChain) discover(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	var discovery handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(get(h, v3Path).Body.Bytes(), &discovery); err != nil {
		t.Fatal(err)
	}
	urls := map[string]string{}
	for name, path := range discovery.Paths {
		urls[name] = path.ServerRelativeURL
	}
	return urls
}

// made returns the versions that have a document.
func (c *customChain) made() (names []string) {
	for name, version := range c.versions.versions {
		version.document.mu.Lock()
		if version.document.value != nil {
			names = append(names, name)
		}
		version.document.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// TestCustom compares the documents with those of upstream's controllers.
func TestCustom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomChain(t)
		ours, theirs := c.discover(t, c.handler), c.discover(t, c.upstream)
		if got, want := slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(theirs)); !slices.Equal(got, want) {
			t.Fatalf("discovered %q, want %q", got, want)
		}
		if made := c.made(); len(made) > 0 {
			t.Errorf("discovery made the documents %q", made)
		}
		for name, url := range ours {
			for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
				got, want := get(c.handler, url, "Accept", accept), get(c.upstream, theirs[name], "Accept", accept)
				if got.Code != http.StatusOK || want.Code != http.StatusOK || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) {
					t.Errorf("%s as %s: status %d, %d bytes; want %d, %d", name, accept, got.Code, got.Body.Len(), want.Code, want.Body.Len())
				}
			}
		}
		definitions, err := c.current()
		if err != nil {
			t.Fatal(err)
		}
		text, err := renderCustomV2(definitions.established)
		if err != nil {
			t.Fatal(err)
		}
		want := get(c.upstream, v2Path).Body.Bytes()
		if !bytes.Equal(text, want) {
			t.Errorf("v2: got %d bytes, want upstream's %d", len(text), len(want))
		}
		if !bytes.Contains(text, []byte("It sings.")) {
			t.Errorf("v2: no Sparrow in %.500s", text)
		}
	})
}

// TestCustomChanges changes a definition. The documents that describe it must change, and no
// others may.
func TestCustomChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomChain(t)
		const birds, plants = "apis/birds.example/v1", "apis/plants.example/v1"
		client := c.client.ApiextensionsV1().CustomResourceDefinitions()
		before := c.discover(t, c.handler)
		owl, err := client.Get(t.Context(), "owls.birds.example", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change := func(change func(*apiextensionsv1.CustomResourceDefinition)) {
			t.Helper()
			owl = owl.DeepCopy()
			change(owl)
			if _, err := client.Update(t.Context(), owl, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		text := func(name string) string {
			w := get(c.handler, before[name])
			if w.Code == http.StatusMovedPermanently {
				w = get(c.handler, w.Header().Get("Location"))
			}
			return w.Body.String()
		}
		text(birds)
		text(plants)

		change(func(d *apiextensionsv1.CustomResourceDefinition) { d.Labels = map[string]string{"new": "label"} })
		if after := c.discover(t, c.handler); !maps.Equal(before, after) {
			t.Errorf("after a new label: discovered %q, want %q", after, before)
		}
		if made := c.made(); !slices.Equal(made, []string{birds, plants}) {
			t.Errorf("after a new label: has documents %q", made)
		}

		change(func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Generation++
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "It hoots."
		})
		after := c.discover(t, c.handler)
		for name := range before {
			if (before[name] == after[name]) != (name != birds) {
				t.Errorf("after a new spec: %s is %s, was %s", name, after[name], before[name])
			}
		}
		if made := c.made(); !slices.Equal(made, []string{plants}) {
			t.Errorf("after a new spec: has documents %q", made)
		}
		if got := text(birds); !strings.Contains(got, "It hoots.") || !strings.Contains(got, "It sings.") {
			t.Errorf("after a new spec: got %.500s", got)
		}

		change(func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Status.Conditions[1].Status = apiextensionsv1.ConditionFalse
		})
		if got := text(birds); strings.Contains(got, "It hoots.") || !strings.Contains(got, "It sings.") {
			t.Errorf("not established: got %.500s", got)
		}
		if err := client.Delete(t.Context(), "sparrows.birds.example", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if w := get(c.handler, before[birds]); w.Code != http.StatusNotFound {
			t.Errorf("all deleted: status %d", w.Code)
		}
	})
}

// TestCustomConflict wants a definition to have no influence on another one whose
// schema has the same name.
func TestCustomConflict(t *testing.T) {
	definitions := readDefinitions(t)[:2]
	definitions[1].Spec.Names.ListKind = "SparrowList"
	text, err := renderCustomV3(definitions, "v1")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("/namespaces/{namespace}/sparrows")) || bytes.Contains(text, []byte("/owls")) {
		t.Errorf("got %.500s", text)
	}
}

// TestIdle wants documents to be forgotten when nobody asks for them.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomChain(t)
		const birds, plants = "apis/birds.example/v1", "apis/plants.example/v1"
		urls := c.discover(t, c.handler)
		first := get(c.handler, urls[birds])
		get(c.handler, urls[plants])
		time.Sleep(keepTime - time.Second)
		get(c.handler, urls[birds])
		time.Sleep(keepTime - time.Second)
		if made := c.made(); !slices.Equal(made, []string{birds}) {
			t.Errorf("has documents %q", made)
		}
		time.Sleep(2 * time.Second)
		if made := c.made(); len(made) > 0 {
			t.Errorf("idle: has documents %q", made)
		}
		again := get(c.handler, urls[birds])
		if !bytes.Equal(first.Body.Bytes(), again.Body.Bytes()) || first.Header().Get("Etag") != again.Header().Get("Etag") {
			t.Error("asked again: another document")
		}
		c.versions.versions[birds].document.drop()
	})
}
