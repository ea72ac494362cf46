package manifests

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/internal/controlplane/addons"
)

// fieldManager owns the fields of what is applied. It is not that of kedge's own
// objects: between these two a conflict is said as any other.
const fieldManager = "kedge-manifests"

// contentError is a fault of a file's content, which no other attempt will mend.
type contentError struct{ error }

func (e *contentError) Unwrap() error { return e.error }

// attempt is one at applying a file, or at removing what one that is gone has put
// into the cluster.
type attempt struct {
	*keeper
	name    string
	file    *file
	here    bool
	content []byte
	// unread is why there is no content.
	unread error

	objects []*unstructured.Unstructured
	// clients are what the objects are applied by, nil for those of unknown kinds.
	clients []dynamic.ResourceInterface
	faults  []error
	// left is what others have set.
	left []string
}

// read finds the objects of the file, with those of Lists one by one. Their names
// stay in file.
func (a *attempt) read(mapper meta.RESTMapper) {
	err := a.unread
	if err == nil {
		a.objects, err = decode(a.content)
	}
	if err != nil {
		// What it had stays its own.
		a.faults = append(a.faults, &contentError{fmt.Errorf("%w. Correct the file: nothing of it is applied until then", err)})
		return
	}
	a.file.objects = nil
	for _, object := range a.objects {
		client, err := a.clientOf(mapper, object)
		if err != nil {
			a.faults = append(a.faults, fmt.Errorf("%s: %w", describe(object), err))
		}
		a.clients = append(a.clients, client)
		a.file.objects = append(a.file.objects, describe(object))
	}
}

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
		if object.GetAPIVersion() == "" || object.GetKind() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("object %d (%s) has no apiVersion, kind or metadata.name", i+1, describe(object))
		}
	}
	return objects, nil
}

// make applies what is in the file and removes what it has no more.
func (a *attempt) make(ctx context.Context, mapper meta.RESTMapper) error {
	if !a.here {
		return a.remove(ctx, mapper)
	}
	if _, wrong := errors.AsType[*contentError](errors.Join(a.faults...)); wrong {
		return errors.Join(a.faults...)
	}
	kinds := sets.New[schema.GroupKind]()
	for _, object := range a.objects {
		if other := a.alsoIn(object); other != "" {
			return &contentError{fmt.Errorf("%s is in %s too. Take it out of one of them", describe(object), other)}
		}
		kinds.Insert(object.GroupVersionKind().GroupKind())
	}
	set, before, err := a.openSet(ctx, a.name, kinds)
	if err != nil {
		return err
	}
	applied := sets.New[types.UID]()
	for i, object := range a.objects {
		if a.clients[i] == nil {
			continue
		}
		object.SetLabels(withLabel(object.GetLabels(), set))
		live, left, err := applyOne(ctx, a.clients[i], object)
		if err != nil {
			a.faults = append(a.faults, fmt.Errorf("%s: %w", describe(object), err))
			continue
		}
		a.left = append(a.left, left...)
		applied.Insert(live.GetUID())
	}
	if len(a.faults) > 0 {
		// Nothing is removed: it may be what the failed ones are to replace.
		return errors.Join(a.faults...)
	}
	if err := a.prune(ctx, mapper, set, before.Union(kinds), applied); err != nil {
		return err
	}
	return a.closeSet(ctx, a.name, before, kinds)
}

// alsoIn returns another file that has an object too, or nothing.
func (a *attempt) alsoIn(object *unstructured.Unstructured) string {
	for name, other := range a.files {
		if other != a.file && slices.Contains(other.objects, describe(object)) {
			return name
		}
	}
	return ""
}

// applyOne applies an object but for those fields that others have set, which it
// returns.
func applyOne(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured) (live *unstructured.Unstructured, left []string, err error) {
	options := metav1.ApplyOptions{FieldManager: fieldManager}
	live, err = client.Apply(ctx, object.GetName(), object, options)
	if lesser, conflicts := withoutConflicts(object, err); lesser != nil {
		live, err = client.Apply(ctx, object.GetName(), lesser, options)
		left = conflicts
	}
	return live, left, err
}

// clientOf returns what an object is applied by.
func (k *keeper) clientOf(mapper meta.RESTMapper, object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the cluster has no kind %s in %s: install its CustomResourceDefinition", kind.Kind, kind.GroupVersion())
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		object.SetNamespace("")
		return k.client.Resource(mapping.Resource), nil
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	return k.client.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
}

// remove removes what a file that is gone has put into the cluster.
func (a *attempt) remove(ctx context.Context, mapper meta.RESTMapper) error {
	kinds, err := a.kindsOf(ctx, a.name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = a.prune(ctx, mapper, setID(setName(a.name)), kinds, nil)
	}
	if err != nil {
		return err
	}
	err = a.client.Resource(configMaps).Namespace(namespace).Delete(ctx, setName(a.name), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err
}

// prune removes the members of a set that are not to be kept, but those that another
// file has now. Kinds that are no more have no objects.
func (a *attempt) prune(ctx context.Context, mapper meta.RESTMapper, set string, kinds sets.Set[schema.GroupKind], keep sets.Set[types.UID]) error {
	var faults []error
	for kind := range kinds {
		mapping, err := mapper.RESTMapping(kind)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return err
		}
		members, err := a.client.Resource(mapping.Resource).List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + set})
		if err != nil {
			faults = append(faults, fmt.Errorf("list %s to remove what the file has no more: %w", mapping.Resource.Resource, err))
			continue
		}
		for _, member := range members.Items {
			uid := member.GetUID()
			if keep.Has(uid) || member.GetDeletionTimestamp() != nil || a.alsoIn(&member) != "" {
				continue
			}
			background := metav1.DeletePropagationBackground
			err := a.client.Resource(mapping.Resource).Namespace(member.GetNamespace()).Delete(ctx, member.GetName(), metav1.DeleteOptions{
				PropagationPolicy: &background,
				Preconditions:     &metav1.Preconditions{UID: &uid},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				faults = append(faults, fmt.Errorf("remove %s, which the file has no more: %w", describe(&member), err))
			}
		}
	}
	return errors.Join(faults...)
}

// describe names an object for people.
func describe(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GetKind() + " " + name
}
