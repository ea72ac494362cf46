package addons

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/manifests"
)

const (
	// storageFolder is the folder with the manifests of local storage.
	storageFolder = "storage"

	storageClassKind  = "StorageClass"
	snapshotClassKind = "VolumeSnapshotClass"
	// defaultAnnotation marks the class of claims that name no class
	// (pkg/apis/storage/util/helpers.go).
	//upstream:relies-on k8s.io/kubernetes/pkg/apis/storage/util/helpers.go IsDefaultStorageClassAnnotation
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
)

// withDefault returns the StorageClass to apply instead of wanted. The user
// decides which class is the default: an existing class, live, keeps its setting,
// and a new one becomes the default only if there is no other.
func (a *Addons) withDefault(ctx context.Context, wanted, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	annotations := wanted.GetAnnotations()
	if annotations[defaultAnnotation] == "" {
		return wanted, nil
	}
	switch {
	case live != nil:
		if kept, ok := live.GetAnnotations()[defaultAnnotation]; ok {
			annotations[defaultAnnotation] = kept
		} else {
			delete(annotations, defaultAnnotation)
		}
	default:
		classes, err := a.storageClasses().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list StorageClasses: %w", err)
		}
		for _, class := range classes.Items {
			if class.GetAnnotations()[defaultAnnotation] == "true" {
				annotations[defaultAnnotation] = "false"
			}
		}
	}
	wanted = wanted.DeepCopy()
	wanted.SetAnnotations(annotations)
	return wanted, nil
}

// removeClasses removes the StorageClasses that kedge made: without local storage
// nobody would make their volumes. Volumes, snapshots and their
// CustomResourceDefinitions stay.
func (a *Addons) removeClasses(ctx context.Context) error {
	objects, err := read(manifests.Files, storageFolder)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetKind() != storageClassKind {
			continue
		}
		live, err := a.storageClasses().Get(ctx, object.GetName(), metav1.GetOptions{})
		if err == nil && !isLeftAlone(live) {
			err = a.storageClasses().Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove StorageClass %s: %w", object.GetName(), err)
		}
	}
	return nil
}

func (a *Addons) storageClasses() dynamic.ResourceInterface {
	return a.client.Resource(schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"})
}
