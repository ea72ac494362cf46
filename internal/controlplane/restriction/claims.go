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

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

const (
	// nodeAnnotation names the node that was chosen for a claim. That node then makes the
	// volume (k8s.io/component-helpers/storage/volume, AnnSelectedNode).
	//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go AnnSelectedNode AnnStorageProvisioner
	nodeAnnotation = "volume.kubernetes.io/selected-node"
	// provisionerAnnotation names the driver that makes the volume (same package,
	// AnnStorageProvisioner).
	provisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	// driver is the name of kedge's driver.
	driver = "local.kedge.dev"
)

// ignoreNode keeps the node of a claim unless a scheduler changes it, because the
// node makes the volume at once, even where no pod could ever run. It warns and does
// not refuse, because exported claims have the annotation too. Anybody who may change
// the claim may remove the node: then the scheduler chooses again.
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
// claims, or a scheduler of the user that may bind the pods of all namespaces. Users
// with all rights do not count as schedulers: they often write objects of others
// (backups, GitOps).
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

// checkVolume lets a node make only the volume of a claim for which that node was
// chosen. The volume binder gives a claim the volume that names it by its UID, or by
// its name alone if the volume has no UID (k8s.io/component-helpers/storage/volume,
// IsVolumeBoundToClaim). The claim is read from the datastore, so that its node may
// act as soon as it was chosen.
//
//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go IsVolumeBoundToClaim
func (p *plugin) checkVolume(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	volume, err := versioned[*corev1.PersistentVolume](a.GetObject(), o, corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" || volume.Name != "pvc-"+string(ref.UID) {
		return admission.NewForbidden(a, errors.New("a node may create volumes only for claims, with the name pvc-UID"))
	}
	claim, err := p.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	chosen := ""
	if err == nil && claim.UID == ref.UID && localstorage.Provisions(claim.Annotations[provisionerAnnotation]) {
		chosen = claim.Annotations[nodeAnnotation]
	}
	if chosen == "" || !slices.Contains(nodesOf(a.GetUserInfo()), chosen) {
		return admission.NewForbidden(a, fmt.Errorf("claim %s/%s with UID %s did not choose this node", ref.Namespace, ref.Name, ref.UID))
	}
	return nil
}

// checkCapacity lets only nodes and users with all rights state the free capacity for
// kedge's volumes. Nodes do that in kube-system, but the scheduler believes the
// capacities of all namespaces. Without this check, anybody could make it choose full
// nodes for everybody's claims.
func (p *plugin) checkCapacity(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	capacity, err := versioned[*storagev1.CSIStorageCapacity](a.GetObject(), o, storagev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, capacity.StorageClassName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read StorageClass %s: %w", capacity.StorageClassName, err)
	}
	if err == nil && !localstorage.Provisions(class.Provisioner) {
		return nil
	}
	allowed, err := p.mayEverything(ctx, a.GetUserInfo())
	if err != nil || allowed {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("StorageClass %s belongs to the driver %s, or does not exist; only that driver's nodes may state capacities for it, in the namespace %s",
		capacity.StorageClassName, driver, systemNamespace))
}
