package manifests

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/controlplane/addons"
)

// identity tells an object from all others. Groups of the API may have kinds of the same
// name: the Services of Kubernetes and of Knative are different objects. The version of
// the group is left out, because each version of it shows the same object.
type identity struct {
	schema.GroupKind
	namespace, name string
}

func identityOf(object *unstructured.Unstructured) identity {
	return identity{object.GroupVersionKind().GroupKind(), object.GetNamespace(), object.GetName()}
}

// String names the object in messages: Service default/hello, or
// Service.serving.knative.dev default/hello.
func (i identity) String() string {
	name := i.name
	if i.namespace != "" {
		name = i.namespace + "/" + name
	}
	return strings.TrimSpace(i.GroupKind.String() + " " + name) // an object that check refuses may lack its kind or its name
}

// errKustomize says that a file is one of kustomize. Such a file describes how to make
// objects, and is no object itself.
var errKustomize = errors.New("this is a file of kustomize, and kedge applies only objects, as k3s does. So the file has no effect, " +
	"and kedge applies the other files of its folder as they are")

// kustomizeGroup is the group of kustomize's own files
// (sigs.k8s.io/kustomize/api/types/kustomization.go). Other groups have a Kustomization
// that is an object, such as Flux's.
const kustomizeGroup = "kustomize.config.k8s.io"

// isKustomization tells whether a file is one of kustomize that says so only by its name:
// kustomize does not ask for apiVersion and kind.
func isKustomization(name string, content []byte) bool {
	var head struct {
		Kind any `json:"kind"`
	}
	return slices.Contains([]string{"kustomization.yaml", "kustomization.yml"}, path.Base(name)) &&
		yaml.Unmarshal(content, &head) == nil && head.Kind == nil
}

// decode returns the objects in a file, and the single objects of Lists. It fails if one
// of them cannot be applied whatever the cluster has.
func decode(content []byte) (objects []*unstructured.Unstructured, err error) {
	documents, err := addons.Decode(content)
	if err != nil {
		return nil, err
	}
	for _, document := range documents {
		if !document.IsList() {
			objects = append(objects, document)
			continue
		}
		err := document.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", document.GetKind(), err)
		}
	}
	for i, object := range objects {
		if err := check(object); err != nil {
			return nil, fmt.Errorf("object %d (%s): %w", i+1, identityOf(object), err)
		}
	}
	return objects, nil
}

// check returns why an object cannot be applied, or nil.
func check(object *unstructured.Unstructured) error {
	switch {
	case object.GroupVersionKind().Group == kustomizeGroup:
		return errKustomize
	case object.GetAPIVersion() == "":
		return errors.New("it has no apiVersion")
	case object.GetKind() == "":
		return errors.New("it has no kind")
	case object.GetName() == "" && object.GetGenerateName() != "":
		return fmt.Errorf("it has metadata.generateName: %s, and no metadata.name. kedge applies a file each time that it starts, "+
			"which would make one more object each time. Give the object a metadata.name, "+
			"or move it to another file outside of the folder and run `kedge kubectl create --filename=FILE` once", object.GetGenerateName())
	case object.GetName() == "":
		return errors.New("it has no metadata.name")
	}
	return nil
}
