package restriction

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
)

const (
	// nodeAnnotation is of a claim that has chosen its node, which then makes the
	// volume (k8s.io/component-helpers/storage/volume, AnnSelectedNode).
	//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go AnnSelectedNode AnnStorageProvisioner
	nodeAnnotation = "volume.kubernetes.io/selected-node"
	// provisionerAnnotation says whose driver is to do so (the same package, AnnStorageProvisioner).
	provisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	// driver is kedge's.
	driver = "local.kedge.dev"
)

// ignoreNode leaves a claim the node that it has, unless a scheduler chooses it: the
// node makes the volume at once, also where no pod could ever run. It warns, and does
// not refuse, as exported claims have the annotation too. Anybody who may change the
// claim may remove the node: then the scheduler chooses anew.
func (p *plugin) ignoreNode(ctx context.Context, a admission.Attributes) error {
	claim, before, err := annotated(a)
	if err != nil {
		return err
	}
	chosen := claim.GetAnnotations()[nodeAnnotation]
	if chosen == "" || chosen == before[nodeAnnotation] {
		return nil
	}
	if schedules, err := p.schedules(ctx, a.GetUserInfo()); err != nil || schedules {
		return err
	}
	kept := maps.Clone(claim.GetAnnotations())
	delete(kept, nodeAnnotation)
	if node := before[nodeAnnotation]; node != "" {
		kept[nodeAnnotation] = node
	}
	claim.SetAnnotations(kept)
	warning.AddWarning(ctx, "", "the annotation "+nodeAnnotation+" is ignored: the scheduler chooses the node of a claim when a pod uses the claim")
	return nil
}

// schedules tells whether a user chooses nodes: the scheduler, kedge's controller of
// claims, or a scheduler of the user's own, which may bind the pods of all namespaces.
// Users with all rights are no schedulers: what they write is often others' (backups,
// GitOps).
func (p *plugin) schedules(ctx context.Context, who user.Info) (bool, error) {
	switch who.GetName() {
	case user.KubeScheduler, "system:kedge:storage-controller":
		return true, nil
	}
	binds, err := p.may(ctx, authorizer.AttributesRecord{User: who, Verb: "create", APIVersion: "v1", Resource: "pods", Subresource: "binding", ResourceRequest: true})
	if err != nil || !binds {
		return false, err
	}
	everything, err := p.mayEverything(ctx, who)
	return !everything, err
}

// checkVolume lets a node make the volume of a claim that chose the node, and no
// other. The binder of volumes gives a claim the volume that names it: by its UID, or
// without one by its name alone (k8s.io/component-helpers/storage/volume,
// IsVolumeBoundToClaim). The claim is read from the datastore, so that its node may
// answer at once when it was chosen.
//
//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go IsVolumeBoundToClaim
func (p *plugin) checkVolume(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	volume, err := versioned[*corev1.PersistentVolume](a.GetObject(), o, corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" || volume.Name != "pvc-"+string(ref.UID) {
		return admission.NewForbidden(a, errors.New("a node may make volumes only for claims, under names made of their UIDs"))
	}
	claim, err := p.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	chosen := ""
	if err == nil && claim.UID == ref.UID && claim.Annotations[provisionerAnnotation] == driver {
		chosen = claim.Annotations[nodeAnnotation]
	}
	if chosen == "" || !slices.Contains(nodesOf(a.GetUserInfo()), chosen) {
		return admission.NewForbidden(a, fmt.Errorf("claim %s/%s with UID %s did not choose this node", ref.Namespace, ref.Name, ref.UID))
	}
	return nil
}

// checkCapacity lets only nodes, and users with all rights, say what room there is for
// kedge's volumes. Nodes do so in kube-system, and the scheduler believes capacities of
// all namespaces: it would choose full nodes for everybody's claims.
func (p *plugin) checkCapacity(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	capacity, err := versioned[*storagev1.CSIStorageCapacity](a.GetObject(), o, storagev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, capacity.StorageClassName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read StorageClass %s: %w", capacity.StorageClassName, err)
	}
	if err == nil && class.Provisioner != driver {
		return nil
	}
	allowed, err := p.mayEverything(ctx, a.GetUserInfo())
	if err != nil || allowed {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("StorageClass %s is not of another driver than %s, whose nodes say in the namespace %s what room they have",
		capacity.StorageClassName, driver, systemNamespace))
}
