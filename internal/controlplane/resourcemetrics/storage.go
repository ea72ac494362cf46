package resourcemetrics

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// storage is what nodes and pods have in common.
type storage struct {
	synced cache.InformerSynced
}

// Destroy implements rest.Storage.
func (storage) Destroy() {}

// GetSingularName implements rest.SingularNameProvider. As with metrics-server there is
// none, so that `kubectl get pod` means the pods of the core API.
func (storage) GetSingularName() string { return "" }

// wait waits until the listers know all objects.
func (s storage) wait(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced) {
		return fmt.Errorf("wait for the informers: %w", context.Cause(ctx))
	}
	return nil
}

// byLabels returns the label selector of a list.
func byLabels(options *internalversion.ListOptions) labels.Selector {
	if options == nil || options.LabelSelector == nil {
		return labels.Everything()
	}
	return options.LabelSelector
}

// choose returns the objects that the field selector of a list selects, in the order in
// which the API lists them. The API knows no fields of these resources except the name
// and the namespace.
func choose[T metav1.Object](objects []T, options *internalversion.ListOptions) []T {
	chosen := slices.Clone(objects) // those of the lister are not ours to sort
	if options != nil && options.FieldSelector != nil {
		chosen = slices.DeleteFunc(chosen, func(object T) bool {
			return !options.FieldSelector.Matches(fields.Set{"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace()})
		})
	}
	slices.SortFunc(chosen, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return chosen
}
