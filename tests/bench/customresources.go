package bench

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic/dynamicinformer"
)

// custom has the list of modules with CustomResourceDefinitions, and an object of each kind of the
// first three projects.
//
//go:embed custom
var custom embed.FS

const customNamespace = "custom"

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// customResources are CustomResourceDefinitions of projects, and objects of them.
type customResources struct {
	cluster  *livedCluster
	projects []string
	// each is how many objects of each kind use makes.
	each int

	defined []*unstructured.Unstructured
	stop    context.CancelFunc
}

// define returns a function that creates the CustomResourceDefinitions of some of the projects, as a user
// does before installing an operator.
func (r *customResources) define(projects ...int) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, n := range projects {
			definitions, err := readDefinitions(ctx, r.projects[n])
			if err != nil {
				return err
			}
			for _, definition := range definitions {
				if _, err := r.cluster.dynamic.Resource(crdResource).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
					return fmt.Errorf("create %s: %w", definition.GetName(), err)
				}
				r.defined = append(r.defined, definition)
			}
		}
		return until(ctx, "CustomResourceDefinitions to be served", r.served)
	}
}

// served returns an error unless the API serves all kinds.
func (r *customResources) served(ctx context.Context) error {
	for _, definition := range r.defined {
		if _, err := r.cluster.dynamic.Resource(resourceOf(definition)).List(ctx, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("list objects of %s: %w", definition.GetName(), err)
		}
	}
	return nil
}

// undefine deletes the CustomResourceDefinitions.
func (r *customResources) undefine(ctx context.Context) error {
	for _, definition := range r.defined {
		if err := r.cluster.dynamic.Resource(crdResource).Delete(ctx, definition.GetName(), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, "CustomResourceDefinitions to go", func(ctx context.Context) error {
		for _, definition := range r.defined {
			if _, err := r.cluster.dynamic.Resource(crdResource).Get(ctx, definition.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is still there: %w", definition.GetName(), err)
			}
		}
		return nil
	})
}

// use creates objects of each kind, and watches them as a controller does.
func (r *customResources) use(ctx context.Context) error {
	if err := r.cluster.makeNamespace(ctx, customNamespace); err != nil {
		return err
	}
	watching, stop := context.WithCancel(r.cluster.ctx)
	r.stop = stop
	informers := dynamicinformer.NewDynamicSharedInformerFactory(r.cluster.dynamic, 0)
	for _, project := range r.projects {
		examples, err := readExamples(project)
		if err != nil {
			return err
		}
		for _, example := range examples {
			definition, err := r.definitionOf(example)
			if err != nil {
				return err
			}
			informers.ForResource(resourceOf(definition))
			if _, err := load(livedWorkers, func(n int) bool { return n < r.each }, func(n int) error {
				object := example.DeepCopy()
				object.SetName(fmt.Sprint(strings.ToLower(object.GetKind()), "-", n))
				_, err := r.cluster.dynamic.Resource(resourceOf(definition)).Namespace(namespaceOf(definition)).Create(ctx, object, metav1.CreateOptions{})
				return err
			}); err != nil {
				return fmt.Errorf("create objects of %s: %w", definition.GetName(), err)
			}
		}
	}
	informers.Start(watching.Done())
	for resource, synced := range informers.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("watch %s: %w", resource.Resource, context.Cause(ctx))
		}
	}
	return nil
}

// unuse ends the watches, and deletes all objects.
func (r *customResources) unuse(ctx context.Context) error {
	r.stop()
	for _, definition := range r.defined {
		if err := r.cluster.dynamic.Resource(resourceOf(definition)).Namespace(namespaceOf(definition)).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("delete objects of %s: %w", definition.GetName(), err)
		}
	}
	return r.cluster.removeNamespaces(ctx, customNamespace)
}

// definitionOf returns the definition of an object's kind.
func (r *customResources) definitionOf(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	for _, definition := range r.defined {
		kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
		if kind == object.GetKind() && resourceOf(definition).GroupVersion().String() == object.GetAPIVersion() {
			return definition, nil
		}
	}
	return nil, fmt.Errorf("find the definition of %s %s: there is none", object.GetAPIVersion(), object.GetKind())
}

// resourceOf returns the resource that a CustomResourceDefinition defines, in the version that is stored.
func resourceOf(definition *unstructured.Unstructured) schema.GroupVersionResource {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		if fields, ok := version.(map[string]any); ok && fields["storage"] == true {
			return schema.GroupVersionResource{Group: group, Version: fmt.Sprint(fields["name"]), Resource: plural}
		}
	}
	return schema.GroupVersionResource{Group: group, Resource: plural}
}

// namespaceOf returns the namespace for objects of a kind, or "" if they have none.
func namespaceOf(definition *unstructured.Unstructured) string {
	if scope, _, _ := unstructured.NestedString(definition.Object, "spec", "scope"); scope == "Cluster" {
		return ""
	}
	return customNamespace
}

// readDefinitions returns the CustomResourceDefinitions in the module of a project. build.sh has
// downloaded the module.
func readDefinitions(ctx context.Context, project string) ([]*unstructured.Unstructured, error) {
	list, err := custom.ReadFile("custom/modules")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != project {
			continue
		}
		folder, err := moduleFolder(ctx, fields[1])
		if err != nil {
			return nil, err
		}
		paths, err := filepath.Glob(filepath.Join(folder, fields[2]))
		if err != nil || len(paths) == 0 {
			return nil, fmt.Errorf("find %s in %s: %w", fields[2], folder, errors.Join(err, os.ErrNotExist))
		}
		var all []*unstructured.Unstructured
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			objects, err := decodeObjects(text)
			if err != nil {
				return nil, fmt.Errorf("decode %s: %w", path, err)
			}
			for _, object := range objects {
				if object.GetKind() == "CustomResourceDefinition" {
					all = append(all, object)
				}
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("find the module of %s: custom/modules has none", project)
}

// moduleFolder returns the folder of a module, MODULE@VERSION, in the module cache.
func moduleFolder(ctx context.Context, module string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir = os.TempDir()
	output, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("find %s in the module cache: %w: %s", module, err, output)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil {
		return "", fmt.Errorf("find %s in the module cache: %w", module, err)
	}
	return found.Dir, nil
}

// readExamples returns an object of each kind of a project, without names.
func readExamples(project string) ([]*unstructured.Unstructured, error) {
	text, err := custom.ReadFile("custom/" + project + ".yaml")
	if err != nil {
		return nil, err
	}
	return decodeObjects(text)
}

// decodeObjects returns the objects of a file with YAML documents.
func decodeObjects(text []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}
