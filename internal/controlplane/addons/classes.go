package addons

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	storageClassKind  = "StorageClass"
	snapshotClassKind = "VolumeSnapshotClass"
	ingressClassKind  = "IngressClass"
	gatewayClassKind  = "GatewayClass"
	// defaultAnnotation marks the class of claims that name no class
	// (pkg/apis/storage/util/helpers.go).
	//upstream:relies-on k8s.io/kubernetes/pkg/apis/storage/util/helpers.go IsDefaultStorageClassAnnotation
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
)

// defaultAnnotations are the annotations, by the kind of class, that mark the class of
// objects that name none.
var defaultAnnotations = map[string]string{
	storageClassKind: defaultAnnotation,
	ingressClassKind: networkingv1.AnnotationIsDefaultIngressClass,
}

// withDefault returns the class to apply instead of wanted. The user decides which class is
// the default: an existing class, live, keeps its setting, and a new one becomes the default
// only if there is no other.
func (a *Addons) withDefault(ctx context.Context, wanted, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	marks := defaultAnnotations[wanted.GetKind()]
	annotations := wanted.GetAnnotations()
	if annotations[marks] == "" {
		return wanted, nil
	}
	switch {
	case live != nil:
		if kept, ok := live.GetAnnotations()[marks]; ok {
			annotations[marks] = kept
		} else {
			delete(annotations, marks)
		}
	default:
		classes, err := a.resource(wanted).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", wanted.GetKind(), err)
		}
		for _, class := range classes.Items {
			if class.GetAnnotations()[marks] == "true" {
				annotations[marks] = "false"
			}
		}
	}
	wanted = wanted.DeepCopy()
	wanted.SetAnnotations(annotations)
	return wanted, nil
}
