package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// placeInterval is the least time between two choices of a node for a claim.
const placeInterval = 10 * time.Second

// These are reasons of Events, as kubectl describe shows them.
const (
	noNode      = "NoNodeForClaim"
	nodeSilent  = "NodeOfVolumeSilent"
	nodeGone    = "NodeOfVolumeGone"
	nodeUnknown = "NodeOfSnapshotUnknown"
)

// sync handles a claim, or an object without a namespace: a volume, or the content of a
// snapshot.
func (c *claims) sync(ctx context.Context, name cache.ObjectName) error {
	if name.Namespace == "" {
		return errors.Join(c.labelVolume(ctx, name.Name), c.syncContent(ctx, name.Name))
	}
	if err := c.letGo(ctx, name); err != nil {
		return err
	}
	claim, err := c.claims.PersistentVolumeClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		delete(c.told, name)
		delete(c.placed, name)
		return nil
	}
	if err != nil {
		return err
	}
	if claim.Spec.VolumeName == "" {
		return c.place(ctx, claim)
	}
	volume, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil // when the volume arrives, the claim is queued again
	}
	if err != nil {
		return err
	}
	node, ours := localstorage.NodeOf(volume)
	if !ours {
		return nil
	}
	if err := c.label(ctx, claim, node); err != nil {
		return err
	}
	c.tellOfNode(claim, node)
	return c.grow(ctx, claim, volume)
}

// tell writes a warning Event about a claim, unless it is the same as the last
// one.
func (c *claims) tell(claim *corev1.PersistentVolumeClaim, reason, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	name := cache.MetaObjectToName(claim)
	if c.told[name] == text {
		return
	}
	c.told[name] = text
	c.events.Event(claim, corev1.EventTypeWarning, reason, text)
}

// place handles a claim without a volume. It warns if no node can ever have the
// volume, and chooses the node if no pod determines it.
func (c *claims) place(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class, err := c.classes.Get(volumehelpers.GetPersistentVolumeClaimClass(claim))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !localstorage.Provisions(class.Provisioner) {
		return nil
	}
	immediate := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingImmediate
	if immediate && claim.Annotations[localstorage.ProvisionerAnnotation] == "" {
		// Upstream's binder of volumes is about to write the annotation. If the claim
		// changed meanwhile, the binder would try again only in its next round.
		return nil
	}
	chosen := claim.Annotations[localstorage.NodeAnnotation]
	if chosen != "" {
		// Admission has done this, except for claims from before it did.
		if err := c.label(ctx, claim, chosen); err != nil {
			return err
		}
	}
	rooms := c.rooms(class.Name)
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if len(rooms) > 0 && rooms[0].size.Cmp(size) < 0 {
		c.tell(claim, noNode, "%s", tooLargeText(size, class, rooms))
		if chosen == "" {
			return c.label(ctx, claim, "") // lets nodes check their capacity more often
		}
		return nil
	}
	delete(c.told, cache.MetaObjectToName(claim))
	if chosen != "" {
		if _, err := c.nodes.Get(chosen); apierrors.IsNotFound(err) {
			return c.choose(ctx, claim, nil) // the node is gone, so nobody else would release the claim
		}
		return nil
	}
	node := c.sourceNode(claim)
	if node == "" && immediate && len(rooms) > 0 {
		node = c.roomiest(class, rooms)
	}
	if node == "" {
		return nil
	}
	name := cache.MetaObjectToName(claim)
	if wait := placeInterval - time.Since(c.placed[name]); wait > 0 {
		// The node has released the claim, and will soon report its real
		// capacity.
		c.queue.AddAfter(name, wait)
		return nil
	}
	c.placed[name] = time.Now()
	return c.choose(ctx, claim, node)
}

// choose sets the node of a claim, or removes it if node is nil.
func (c *claims) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, node any) error {
	err := mergepatch.Send(ctx, c.api.CoreV1().PersistentVolumeClaims(claim.Namespace), claim.Name, map[string]any{"metadata": map[string]any{
		"resourceVersion": claim.ResourceVersion,
		"annotations":     map[string]any{localstorage.NodeAnnotation: node},
	}})
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("choose node of claim: %w", err)
	}
	return nil
}

// room is the capacity that a node has for a class.
type room struct {
	node string
	size resource.Quantity
	why  string // why the node has no capacity
}

// rooms returns the capacities of all nodes for a class, the largest first.
func (c *claims) rooms(class string) []room {
	// Listing a cache does not fail.
	all, _ := c.capacities.CSIStorageCapacities(localstorage.Namespace).List(labels.Everything())
	var rooms []room
	for _, capacity := range all {
		if capacity.StorageClassName != class || capacity.NodeTopology == nil || capacity.Capacity == nil {
			continue
		}
		if node := capacity.NodeTopology.MatchLabels[localstorage.TopologyKey]; node != "" {
			rooms = append(rooms, room{node, *capacity.Capacity, capacity.Annotations[localstorage.WhyAnnotation]})
		}
	}
	slices.SortFunc(rooms, func(a, b room) int { return cmp.Or(b.size.Cmp(a.size), strings.Compare(a.node, b.node)) })
	return rooms
}

// tooLargeText says which sizes are possible.
func tooLargeText(size resource.Quantity, class *storagev1.StorageClass, rooms []room) string {
	var text strings.Builder
	if i := slices.IndexFunc(rooms, func(r room) bool { return r.why == "" }); i >= 0 {
		fmt.Fprintf(&text, "the claim asks for %s, and no node has that much free space. The largest possible size is %s, on node %s", &size, &rooms[i].size, rooms[i].node)
	} else {
		fmt.Fprintf(&text, "no node can have a volume of the StorageClass %s", class.Name)
	}
	for _, r := range rooms {
		if r.why != "" {
			fmt.Fprintf(&text, "; node %s: %s", r.node, r.why)
		}
	}
	return text.String()
}

// roomiest returns the node with the largest capacity that a class allows, or an
// empty string if there is none.
func (c *claims) roomiest(class *storagev1.StorageClass, rooms []room) string {
	for _, r := range rooms {
		if _, err := c.nodes.Get(r.node); err == nil && !r.size.IsZero() && admits(class, r.node) {
			return r.node
		}
	}
	return ""
}

// admits tells whether a class allows a node.
func admits(class *storagev1.StorageClass, node string) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(class.AllowedTopologies, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(r corev1.TopologySelectorLabelRequirement) bool {
			return r.Key == localstorage.TopologyKey && !slices.Contains(r.Values, node)
		})
	})
}

// sourceNode returns the node of the source that a claim copies: the copy must be
// on the same node. The scheduler knows nothing of sources, but respects a node
// that is already chosen.
func (c *claims) sourceNode(claim *corev1.PersistentVolumeClaim) string {
	ref := claim.Spec.DataSourceRef
	if ref == nil {
		return ""
	}
	switch (schema.GroupKind{Group: ptr.Deref(ref.APIGroup, ""), Kind: ref.Kind}) {
	case schema.GroupKind{Kind: "PersistentVolumeClaim"}:
		source, err := c.claims.PersistentVolumeClaims(claim.Namespace).Get(ref.Name)
		if err != nil || source.Spec.VolumeName == "" {
			return ""
		}
		volume, err := c.volumes.Get(source.Spec.VolumeName)
		if err != nil {
			return ""
		}
		node, _ := localstorage.NodeOf(volume)
		return node
	case schema.GroupKind{Group: snapshotv1.GroupName, Kind: "VolumeSnapshot"}:
		snapshot, err := c.snapshots.VolumeSnapshots(claim.Namespace).Get(ref.Name)
		if err != nil || snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil {
			return ""
		}
		content, err := c.contents.Get(*snapshot.Status.BoundVolumeSnapshotContentName)
		if err != nil || content.Spec.Driver != localstorage.Driver {
			return ""
		}
		return managedBy(content)
	}
	return ""
}

func managedBy(content *snapshotv1.VolumeSnapshotContent) string {
	return content.Labels[utils.VolumeSnapshotContentManagedByLabel]
}
