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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	volumehelpers "k8s.io/component-helpers/storage/volume"

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
	// storageController is kedge's controller of claims (controlplane/storage).
	storageController = "system:kedge:storage-controller"
	// driver is the name of kedge's driver.
	driver = "local.kedge.dev"
)

// admitClaim keeps the node of a claim, and the label by which that node sees the claim,
// unless a scheduler chooses another node. Then the claim gets the label in the same
// write: upstream's binder of volumes writes to the claim as soon as a node is chosen, and
// waits for its next round, of 15 seconds, if somebody else has written too
// (kubernetes/pkg/controller/volume/persistentvolume/pv_controller.go,
// provisionClaimOperationExternal).
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/volume/persistentvolume/pv_controller.go PersistentVolumeController.provisionClaimOperationExternal
func (p *plugin) admitClaim(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	claim, before, err := metadata(a)
	if err != nil {
		return err
	}
	if a.GetUserInfo().GetName() != storageController {
		keepLabel(ctx, claim, before.GetLabels())
	}
	chosen := claim.GetAnnotations()[nodeAnnotation]
	if chosen == "" || chosen == before.GetAnnotations()[nodeAnnotation] {
		return nil
	}
	schedules, err := p.schedules(ctx, a.GetUserInfo())
	if err != nil {
		return err
	}
	if !schedules {
		ignoreNode(ctx, claim, before.GetAnnotations()[nodeAnnotation])
		return nil
	}
	return p.labelClaim(ctx, claim, chosen, a.GetObject(), o)
}

// keepLabel gives a claim the label that it had. kedge's controller of claims gives the label
// to claims whose node an older kedge has chosen.
func keepLabel(ctx context.Context, claim metav1.Object, before map[string]string) {
	value, has := claim.GetLabels()[localstorage.TopologyKey]
	was, had := before[localstorage.TopologyKey]
	if has == had && value == was {
		return
	}
	setLabel(claim, was, had)
	if has {
		warning.AddWarning(ctx, "", "the label "+localstorage.TopologyKey+" is ignored: kedge sets it to the node of the claim's volume")
	}
}

// setLabel gives a claim the label of a node, or takes it away.
func setLabel(claim metav1.Object, node string, set bool) {
	labels := maps.Clone(claim.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	delete(labels, localstorage.TopologyKey)
	if set {
		labels[localstorage.TopologyKey] = node
	}
	claim.SetLabels(labels)
}

// ignoreNode gives a claim the node that it had, because a node makes the volume at once,
// even where no pod could ever run. It warns and does not refuse, because exported claims
// have the annotation too. Anybody who may change the claim may remove the node: then the
// scheduler chooses again.
func ignoreNode(ctx context.Context, claim metav1.Object, before string) {
	kept := maps.Clone(claim.GetAnnotations())
	delete(kept, nodeAnnotation)
	if before != "" {
		kept[nodeAnnotation] = before
	}
	claim.SetAnnotations(kept)
	warning.AddWarning(ctx, "", "the annotation "+nodeAnnotation+" is ignored: the scheduler chooses the node of a claim when a pod uses the claim")
}

// labelClaim gives a claim the label of its node, if kedge makes its volume.
func (p *plugin) labelClaim(ctx context.Context, claim metav1.Object, node string, object runtime.Object, o admission.ObjectInterfaces) error {
	asked, err := versioned[*corev1.PersistentVolumeClaim](object, o, corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, volumehelpers.GetPersistentVolumeClaimClass(asked), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read StorageClass of claim: %w", err)
	}
	if localstorage.Provisions(class.Provisioner) {
		setLabel(claim, node, true)
	}
	return nil
}

// schedules tells whether a user chooses nodes: the scheduler, kedge's controller of
// claims, or a scheduler of the user that may bind the pods of all namespaces. Users
// with all rights do not count as schedulers: they often write objects of others
// (backups, GitOps).
func (p *plugin) schedules(ctx context.Context, who user.Info) (bool, error) {
	switch who.GetName() {
	case user.KubeScheduler, storageController:
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
