package storage

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// The functions in this file turn changes of objects into claims to check.

func (c *claims) volumeChanged(object any) {
	if volume, ok := objectcache.Latest(object).(*corev1.PersistentVolume); ok {
		c.queue.Add(cache.MetaObjectToName(volume))
		c.addClaimOf(volume)
	}
}

func (c *claims) addClaimOf(volume *corev1.PersistentVolume) {
	if _, ours := localstorage.NodeOf(volume); ours && volume.Spec.ClaimRef != nil {
		c.queue.Add(cache.ObjectName{Namespace: volume.Spec.ClaimRef.Namespace, Name: volume.Spec.ClaimRef.Name})
	}
}

// nodeUpdated ignores heartbeats.
func (c *claims) nodeUpdated(before, now any) {
	if silentSince(before.(*corev1.Node)).Equal(silentSince(now.(*corev1.Node))) {
		return
	}
	c.nodeChanged(now)
}

func (c *claims) nodeChanged(object any) {
	name, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		return
	}
	// Listing a cache does not fail.
	volumes, _ := c.volumes.List(labels.Everything())
	for _, volume := range volumes {
		if node, ours := localstorage.NodeOf(volume); ours && node == name.Name {
			c.addClaimOf(volume)
		}
	}
	if _, err := c.nodes.Get(name.Name); err != nil {
		c.addPending() // among them the claims for which the node was chosen
	}
	contents, _ := c.contents.List(labels.Everything())
	for _, content := range contents {
		if managedBy(content) == name.Name {
			c.queue.Add(cache.MetaObjectToName(content))
		}
	}
}

func (c *claims) capacityChanged(object any) {
	if capacity, ok := object.(*storagev1.CSIStorageCapacity); ok && capacity.NodeTopology != nil && capacity.NodeTopology.MatchLabels[localstorage.TopologyKey] != "" {
		c.addPending()
	}
}

func (c *claims) contentChanged(object any) {
	if content, ok := object.(*snapshotv1.VolumeSnapshotContent); ok && content.Spec.Driver == localstorage.Driver {
		c.queue.Add(cache.MetaObjectToName(content))
		c.addPending()
	}
}

// addPending queues all claims that have no volume.
func (c *claims) addPending() {
	all, _ := c.claims.List(labels.Everything())
	for _, claim := range all {
		if claim.Spec.VolumeName == "" {
			c.queue.Add(cache.MetaObjectToName(claim))
		}
	}
}
