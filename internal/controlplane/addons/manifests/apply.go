package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/internal/base/jsonsyntax"
)

// fieldManager owns the applied fields. It differs from the field manager of
// kedge's own objects, so that a conflict with these is reported too.
const fieldManager = "kedge-manifests"

// contentError is a fault of the files' contents. Another attempt fails in the same way
// until one of the files changes.
type contentError struct{ error }

func (e *contentError) Unwrap() error { return e.error }

// attempt is one attempt to apply a file, or to remove what a deleted file had
// put into the cluster.
type attempt struct {
	*keeper
	name    string
	file    *file
	here    bool
	content []byte
	// unread says why the content could not be read.
	unread error

	// wrong says why nothing in the file can be applied.
	wrong   error
	objects []*unstructured.Unstructured
	// clients apply the objects. They are nil for objects of unknown kinds.
	clients []dynamic.ResourceInterface
	faults  []error
	// left names the fields that others have set.
	left []string
}

// read reads the objects of the file, and the single objects of Lists. It keeps
// their names in file.
func (a *attempt) read(mapper meta.RESTMapper) {
	err := a.unread
	if err == nil {
		a.objects, err = decode(a.content)
		if fault := jsonsyntax.Fault(a.content); err != nil && path.Ext(a.name) == jsonsyntax.Extension && fault != nil {
			err = fault
		}
	}
	// The objects that the file had before still belong to it.
	switch {
	case errors.Is(err, errKustomize), err != nil && isKustomization(a.name, a.content):
		a.wrong = &contentError{fmt.Errorf("%w. Move the file, and the files that it names, out of %s. Then write the objects that it makes into a file there: "+
			"`kedge kubectl kustomize FOLDER > %[2]s/NAME.yaml`", errKustomize, a.Path)}
		return
	case err != nil:
		a.wrong = &contentError{fmt.Errorf("%w. Correct the file: until then nothing in it is applied", err)}
		return
	}
	a.file.objects = nil
	for _, object := range a.objects {
		client, err := a.clientOf(mapper, object)
		if err != nil {
			a.faults = append(a.faults, fmt.Errorf("%s: %w", identityOf(object), err))
		}
		a.clients = append(a.clients, client)
		a.file.objects = append(a.file.objects, identityOf(object))
	}
}

// make applies the objects in the file, and removes those that are no longer in
// it.
func (a *attempt) make(ctx context.Context, mapper meta.RESTMapper) error {
	if !a.here {
		return a.remove(ctx, mapper)
	}
	if a.wrong != nil {
		return a.wrong
	}
	kinds := sets.New[schema.GroupKind]()
	for _, object := range a.objects {
		if other := a.alsoIn(identityOf(object)); other != "" {
			return &contentError{fmt.Errorf("%s is also in %s. Remove it from one of the files", identityOf(object), other)}
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
			a.faults = append(a.faults, fmt.Errorf("%s: %w", identityOf(object), err))
			continue
		}
		a.left = append(a.left, left...)
		applied.Insert(live.GetUID())
	}
	if len(a.faults) > 0 {
		// Nothing is removed yet: the failed objects may have to replace it.
		return errors.Join(a.faults...)
	}
	if err := a.prune(ctx, mapper, set, before.Union(kinds), applied); err != nil {
		return err
	}
	return a.closeSet(ctx, a.name, before, kinds)
}

// alsoIn returns another file that has the object too, or an empty string.
func (a *attempt) alsoIn(object identity) string {
	for _, name := range slices.Sorted(maps.Keys(a.files)) {
		if other := a.files[name]; other != a.file && slices.Contains(other.objects, object) {
			return name
		}
	}
	return ""
}

// applyOne applies an object except for the fields that others have set. It
// returns these fields.
func applyOne(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured) (live *unstructured.Unstructured, left []string, err error) {
	options := metav1.ApplyOptions{FieldManager: fieldManager}
	live, err = client.Apply(ctx, object.GetName(), object, options)
	if lesser, conflicts := withoutConflicts(object, err); lesser != nil {
		live, err = client.Apply(ctx, object.GetName(), lesser, options)
		left = conflicts
	}
	return live, left, err
}

// clientOf returns the client that applies an object.
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

// remove removes what a deleted file had put into the cluster.
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

// prune removes the members of a set, except those in keep and those that are now in
// another file. Kinds that no longer exist have no objects.
func (a *attempt) prune(ctx context.Context, mapper meta.RESTMapper, set string, kinds sets.Set[schema.GroupKind], keep sets.Set[types.UID]) error {
	var faults []error
	for _, kind := range sortedKinds(kinds) {
		mapping, err := mapper.RESTMapping(kind)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return err
		}
		members, err := a.client.Resource(mapping.Resource).List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + set})
		if err != nil {
			faults = append(faults, fmt.Errorf("list %s to remove objects that are no longer in the file: %w", mapping.Resource.Resource, err))
			continue
		}
		for _, member := range members.Items {
			uid, is := member.GetUID(), identity{kind, member.GetNamespace(), member.GetName()}
			if keep.Has(uid) || member.GetDeletionTimestamp() != nil || a.alsoIn(is) != "" {
				continue
			}
			background := metav1.DeletePropagationBackground
			err := a.client.Resource(mapping.Resource).Namespace(member.GetNamespace()).Delete(ctx, member.GetName(), metav1.DeleteOptions{
				PropagationPolicy: &background,
				Preconditions:     &metav1.Preconditions{UID: &uid},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				faults = append(faults, fmt.Errorf("remove %s, which is no longer in the file: %w", is, err))
			}
		}
	}
	return errors.Join(faults...)
}
