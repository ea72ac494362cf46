package localstorage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// NodeOf returns the node that has the data of a volume. ours is false if the volume is
// not kedge's.
func NodeOf(volume *corev1.PersistentVolume) (node string, ours bool) {
	if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != Driver {
		return "", false
	}
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return "", false
	}
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		i := slices.IndexFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == TopologyKey })
		if i >= 0 && len(term.MatchExpressions[i].Values) == 1 {
			return term.MatchExpressions[i].Values[0], true
		}
	}
	return "", false
}

// Forget deletes the object of a volume whose data are gone or given up.
func Forget(ctx context.Context, api kubernetes.Interface, volume *corev1.PersistentVolume) error {
	if volume.DeletionTimestamp == nil {
		err := api.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &volume.UID}})
		if err := IgnoreOutdated(err); err != nil {
			return fmt.Errorf("delete volume %s: %w", volume.Name, err)
		}
	}
	return Unprotect(ctx, api, volume)
}

// Unprotect removes VolumeFinalizer from the object of a volume, and leaves other
// finalizers.
func Unprotect(ctx context.Context, api kubernetes.Interface, volume *corev1.PersistentVolume) error {
	return patchFinalizer(ctx, api, volume, "$deleteFromPrimitiveList/finalizers")
}

// Protect adds VolumeFinalizer to the object of a volume.
func Protect(ctx context.Context, api kubernetes.Interface, volume *corev1.PersistentVolume) error {
	return patchFinalizer(ctx, api, volume, "finalizers")
}

// patchFinalizer patches the finalizers, a list whose elements are merged.
func patchFinalizer(ctx context.Context, api kubernetes.Interface, volume *corev1.PersistentVolume, field string) error {
	patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, %q: [%q]}}`, volume.UID, field, VolumeFinalizer)
	_, err := api.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err := IgnoreOutdated(err); err != nil {
		return fmt.Errorf("change finalizers of volume %s: %w", volume.Name, err)
	}
	return nil
}

// IgnoreOutdated returns nil instead of an error that says that the object has changed or
// is gone: the caller hears of that change and looks again.
func IgnoreOutdated(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
