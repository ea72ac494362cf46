package addons

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
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

func (a *Addons) storageClasses() dynamic.ResourceInterface {
	return a.client.Resource(schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"})
}
