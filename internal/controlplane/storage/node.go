package storage

import (
	"context"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

// silentSince returns since when a node does not answer, or the zero time if it
// does.
func silentSince(node *corev1.Node) time.Time {
	if ready := nodeobject.Ready(node); ready.Status == corev1.ConditionUnknown {
		return ready.LastTransitionTime.Time
	}
	return time.Time{}
}

// tellOfNode tells the user of a claim what to do if the node does not answer.
func (c *claims) tellOfNode(claim *corev1.PersistentVolumeClaim, name string) {
	node, err := c.nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		c.tell(claim, nodeGone, "node %s, which has the data of this claim, is no longer in the cluster. Start kedge on that node again. "+
			"Or give up the data: run `kubectl delete pvc %s --namespace %s`, and delete the pod that uses it", name, claim.Name, claim.Namespace)
	case err != nil:
	case !silentSince(node).IsZero():
		c.tell(claim, nodeSilent, "node %s, which has the data of this claim, has not answered since %s. When the node is back, the data are back. "+
			"If the node is gone for good, give up the node and the data: run `kubectl delete node %s` and `kubectl delete pvc %s --namespace %s`",
			name, silentSince(node).UTC().Format(time.RFC3339), name, claim.Name, claim.Namespace)
	default:
		delete(c.told, cache.MetaObjectToName(claim))
	}
}

// syncContent handles the content of a snapshot if no node does.
func (c *claims) syncContent(ctx context.Context, name string) error {
	content, err := c.contents.Get(name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.Driver != localstorage.Driver {
		return nil
	}
	if err != nil {
		return err
	}
	node := managedBy(content)
	if node == "" {
		return c.findNode(ctx, content)
	}
	if content.DeletionTimestamp == nil || !slices.Contains(content.Finalizers, utils.VolumeSnapshotContentFinalizer) {
		return nil
	}
	if _, err := c.nodes.Get(node); !apierrors.IsNotFound(err) {
		return nil
	}
	// With the finalizer, neither the content nor the namespace of its snapshot
	// could ever be deleted.
	kept := slices.DeleteFunc(slices.Clone(content.Finalizers), func(finalizer string) bool { return finalizer == utils.VolumeSnapshotContentFinalizer })
	if err := c.patchContent(ctx, content, map[string]any{"finalizers": kept}); err != nil {
		return err
	}
	c.log.Warnf("Released the snapshot content %s: its node %s is no longer in the cluster", name, node)
	return nil
}

// findNode sets the node of a content that a user has made.
func (c *claims) findNode(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	// Listing a cache does not fail.
	nodes, _ := c.nodes.List(labels.Everything())
	with := slices.DeleteFunc(slices.Clone(nodes), func(node *corev1.Node) bool { return node.Labels[localstorage.TopologyKey] == "" })
	if len(with) == 1 {
		return c.patchContent(ctx, content, map[string]any{"labels": map[string]string{utils.VolumeSnapshotContentManagedByLabel: with[0].Name}})
	}
	c.events.Eventf(content, corev1.EventTypeWarning, nodeUnknown, "several nodes may have this snapshot: name the node with `kubectl label volumesnapshotcontent %s %s=NODE`",
		content.Name, utils.VolumeSnapshotContentManagedByLabel)
	return nil
}

func (c *claims) patchContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, metadata map[string]any) error {
	metadata["resourceVersion"] = content.ResourceVersion
	err := mergepatch.Send(ctx, c.custom.SnapshotV1().VolumeSnapshotContents(), content.Name, map[string]any{"metadata": metadata})
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("change content %s of a snapshot: %w", content.Name, err)
	}
	return nil
}

// letGo removes the volumes of a deleted claim whose nodes are gone too, because
// nobody else would. If such a node comes back, the data on it are leftovers.
func (c *claims) letGo(ctx context.Context, name cache.ObjectName) error {
	// Listing a cache does not fail.
	volumes, _ := c.volumes.List(labels.Everything())
	for _, volume := range volumes {
		ref := volume.Spec.ClaimRef
		if ref == nil || ref.Namespace != name.Namespace || ref.Name != name.Name || volume.Status.Phase != corev1.VolumeReleased ||
			volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			continue
		}
		node, ours := localstorage.NodeOf(volume)
		if !ours {
			continue
		}
		if _, err := c.nodes.Get(node); !apierrors.IsNotFound(err) {
			continue
		}
		if err := localstorage.Forget(ctx, c.api, volume); err != nil {
			return err
		}
		c.log.Warnf("Released volume %s of the claim %s: its node %s is no longer in the cluster. If kedge is started on that node again, `kedge status` there shows the leftover data", volume.Name, name, node)
	}
	return nil
}
