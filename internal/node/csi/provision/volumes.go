package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

const (
	// fsTypeParameter is a parameter of StorageClasses that the kubelet needs too.
	fsTypeParameter = "csi.storage.k8s.io/fstype"
	// provisionedBy is the annotation with the driver that made a volume for a claim
	// (k8s.io/component-helpers/storage/volume, AnnDynamicallyProvisioned).
	//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go AnnDynamicallyProvisioned
	provisionedBy = "pv.kubernetes.io/provisioned-by"
)

// volumeName returns the name of a claim's volume, as in external-provisioner.
//
//upstream:relies-on github.com/kubernetes-csi/external-provisioner/v6/pkg/controller/controller.go makeVolumeName
func volumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// provision makes the volume of a claim with the driver and returns its PersistentVolume. It returns
// nil if another provisioner makes the volume.
func (c *claims) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*corev1.PersistentVolume, error) {
	request, err := c.request(ctx, claim, class)
	if err != nil || request == nil {
		return nil, err
	}
	answer, err := c.Driver.CreateVolume(ctx, request)
	c.changed()
	if err != nil {
		return nil, plainly(err)
	}
	made := answer.GetVolume()
	size := max(made.GetCapacityBytes(), request.CapacityRange.RequiredBytes)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        request.Name,
			Labels:      map[string]string{localstorage.TopologyKey: c.Node},
			Annotations: map[string]string{provisionedBy: localstorage.Driver},
			Finalizers:  []string{localstorage.VolumeFinalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			StorageClassName: class.Name,
			AccessModes:      claim.Spec.AccessModes,
			MountOptions:     class.MountOptions,
			VolumeMode:       claim.Spec.VolumeMode,
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver:           localstorage.Driver,
				VolumeHandle:     made.GetVolumeId(),
				FSType:           request.VolumeCapabilities[0].GetMount().GetFsType(),
				VolumeAttributes: made.GetVolumeContext(),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{c.Node}}},
			}}}},
		},
	}
	if policy := class.ReclaimPolicy; policy != nil {
		volume.Spec.PersistentVolumeReclaimPolicy = *policy
	}
	if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		volume.Finalizers = nil
	}
	return volume, nil
}

// request returns the request to the driver for a claim, or nil if another provisioner makes the
// volume.
func (c *claims) request(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*csi.CreateVolumeRequest, error) {
	if claim.Spec.Selector != nil {
		return nil, errors.New("the claim has a selector, but volumes that kedge makes have no labels to select: remove the selector")
	}
	if attributes := claim.Spec.VolumeAttributesClassName; attributes != nil && *attributes != "" {
		return nil, fmt.Errorf("the claim has the VolumeAttributesClass %s, but local volumes have no attributes: remove volumeAttributesClassName", *attributes)
	}
	// The driver has SINGLE_NODE_MULTI_WRITER, so ReadWriteOnce is for several pods of a node,
	// and ReadWriteOncePod for one pod.
	mode, err := accessmodes.ToCSIAccessMode(claim.Spec.AccessModes, true)
	if err != nil {
		return nil, err
	}
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if volumeMode(claim) == corev1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: class.Parameters[fsTypeParameter], MountFlags: class.MountOptions}}
	}
	source, err := c.source(ctx, claim)
	if errors.Is(err, errPopulated) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return &csi.CreateVolumeRequest{
		Name:                volumeName(claim),
		CapacityRange:       &csi.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapabilities:  []*csi.VolumeCapability{capability},
		Parameters:          localstorage.Parameters(class),
		VolumeContentSource: source,
		AccessibilityRequirements: &csi.TopologyRequirement{
			Requisite: []*csi.Topology{topology(c.Node)},
			Preferred: []*csi.Topology{topology(c.Node)},
		},
	}, nil
}

// save creates the PersistentVolume of a volume.
func (c *claims) save(ctx context.Context, volume *corev1.PersistentVolume) error {
	_, err := c.api.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("save volume %s: %w", volume.Name, err)
	}
	return nil
}

// deleteData deletes a volume with the driver.
func (c *claims) deleteData(ctx context.Context, handle string) error {
	_, err := c.Driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: handle})
	c.changed()
	return plainly(err)
}

// isElsewhere tells whether another node may be able to make the volume: one with enough space, or
// the node with the source of a copy.
func isElsewhere(err error, claim *corev1.PersistentVolumeClaim) bool {
	return errors.Is(err, errElsewhere) || status.Code(err) == codes.ResourceExhausted && claim.Spec.DataSourceRef == nil
}

// giveBack makes the scheduler choose a node for the claim again.
func (c *claims) giveBack(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	patch := fmt.Appendf(nil, `{"metadata": {"resourceVersion": %q, "annotations": {%q: null}}}`, claim.ResourceVersion, localstorage.NodeAnnotation)
	_, err := c.api.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("give claim back to the scheduler: %w", err)
	}
	return nil
}

// plain is an error of a driver with its code. Its text is the message only, for users.
type plain struct{ *status.Status }

func (p plain) Error() string              { return p.Message() }
func (p plain) GRPCStatus() *status.Status { return p.Status }

func plainly(err error) error {
	if err == nil {
		return nil
	}
	return plain{status.Convert(err)}
}

func volumeMode(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeMode {
	if claim.Spec.VolumeMode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *claim.Spec.VolumeMode
}

// tooSmall returns an error if the claim asks for less space than its source needs.
func tooSmall(claim *corev1.PersistentVolumeClaim, source string, least resource.Quantity) error {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(least) >= 0 {
		return nil
	}
	return fmt.Errorf("the claim asks for %s, but %s needs %s: request at least that size", &size, source, &least)
}
