package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	// capacityInterval is how often the free space is measured if no volume was made or deleted on this
	// node, because other data on the disk change it too. awaitedInterval applies while a claim waits
	// for space, or for the user to correct what keeps this node from having any.
	capacityInterval = 5 * time.Minute
	awaitedInterval  = 10 * time.Second
	// Upstream's labels of capacities (external-provisioner, pkg/capacity).
	//upstream:relies-on github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity/capacity.go DriverNameLabel ManagedByLabel
	driverLabel    = "csi.storage.k8s.io/drivername"
	managedByLabel = "csi.storage.k8s.io/managed-by"
)

// capacities publishes how much space this node has for volumes of each StorageClass, for the
// scheduler. The values change in steps, so that an idle node writes nothing.
type capacities struct {
	Config
	api kubernetes.Interface
	log *logrus.Entry
	// look receives when the free space is to be measured.
	look loop.Changes

	owner     metav1.OwnerReference                    // this node: the capacities are deleted with it
	published map[string]*storagev1.CSIStorageCapacity // by name
}

func newCapacities(cfg Config, api kubernetes.Interface) *capacities {
	return &capacities{Config: cfg, api: api, log: logrus.WithField("component", "capacities"), look: loop.NewChanges()}
}

// refresh makes Run measure the free space soon.
func (c *capacities) refresh() { c.look.Notify() }

// Name implements component.Component.
func (*capacities) Name() string { return "capacities" }

// Run implements component.Component. It is ready at once, because a new node is not registered yet.
func (c *capacities) Run(ctx context.Context, ready func()) error {
	factory, err := c.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	classes, claims, nodes := factory.Storage().V1().StorageClasses(), factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().Nodes()
	// Adding a handler fails only on an informer that has stopped.
	_, _ = classes.Informer().AddEventHandler(objectcache.OnChange(func(any) { c.refresh() }))
	_, _ = nodes.Informer().AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(object any) bool {
			node, ok := object.(*corev1.Node)
			return ok && node.Name == c.Node
		},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(any) { c.refresh() }},
	})
	// The scheduler is about to choose a node for this claim.
	_, _ = claims.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
			c.refresh()
		}
	}})
	factory.StartWithContext(ctx)
	ready()
	if !cache.WaitFor(ctx, "", classes.Informer().HasSyncedChecker(), claims.Informer().HasSyncedChecker(), nodes.Informer().HasSyncedChecker()) {
		return nil
	}
	loop.Loop{Log: c.log, Last: lastRetry, Wake: c.look}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		node, err := nodes.Lister().Get(c.Node)
		if err == nil {
			// Listing a cache does not fail.
			known, _ := classes.Lister().List(labels.Everything())
			err = c.sync(ctx, node, known)
		} else if apierrors.IsNotFound(err) {
			err = nil // not registered yet, or deleted
		}
		switch {
		case err != nil:
			return loop.Next{}, fmt.Errorf("cannot publish how much space there is for volumes: %w", err)
		case c.isAwaited(claims.Lister()):
			return loop.Next{After: awaitedInterval}, nil
		}
		return loop.Next{After: capacityInterval}, nil
	})
	return nil
}

// isAwaited tells whether an unbound claim asks for more space than this node has.
func (c *capacities) isAwaited(claims corelisters.PersistentVolumeClaimLister) bool {
	// Listing a cache does not fail.
	all, _ := claims.List(labels.Everything())
	for _, claim := range all {
		if claim.Spec.VolumeName != "" {
			continue
		}
		published := c.published[capacityName(c.Node, volumehelpers.GetPersistentVolumeClaimClass(claim))]
		if published != nil && published.Capacity.Cmp(claim.Spec.Resources.Requests[corev1.ResourceStorage]) < 0 {
			return true
		}
	}
	return false
}

// sync brings the published capacities of this node up to date.
func (c *capacities) sync(ctx context.Context, node *corev1.Node, classes []*storagev1.StorageClass) error {
	api := c.api.StorageV1().CSIStorageCapacities(localstorage.Namespace)
	if c.published == nil || c.owner.UID != node.UID {
		// This is the first call, or the node was deleted and registered again. The capacities
		// of the former node are deleted with it.
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(c.labels()).String()})
		if err != nil {
			return fmt.Errorf("list capacities: %w", err)
		}
		c.published = map[string]*storagev1.CSIStorageCapacity{}
		for i := range list.Items {
			c.published[list.Items[i].Name] = &list.Items[i]
		}
		c.owner = metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	}
	gone := map[string]bool{}
	for name := range c.published {
		gone[name] = true
	}
	for _, class := range classes {
		if !localstorage.Provisions(class.Provisioner) {
			continue
		}
		name := capacityName(c.Node, class.Name)
		delete(gone, name)
		wanted := c.wanted(ctx, name, class)
		before := c.published[name]
		if before != nil && equality.Semantic.DeepEqual(before.Capacity, wanted.Capacity) && equality.Semantic.DeepEqual(before.OwnerReferences, wanted.OwnerReferences) &&
			before.Annotations[localstorage.WhyAnnotation] == wanted.Annotations[localstorage.WhyAnnotation] {
			continue
		}
		written, err := c.write(ctx, wanted, before)
		if err != nil {
			return fmt.Errorf("write capacity for StorageClass %s: %w", class.Name, err)
		}
		c.published[name] = written
	}
	for name := range gone {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete capacity %s: %w", name, err)
		}
		delete(c.published, name)
	}
	return nil
}

// write creates or updates a capacity. If somebody else has changed or deleted it, the next sync
// lists all capacities again.
func (c *capacities) write(ctx context.Context, wanted, before *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	api := c.api.StorageV1().CSIStorageCapacities(localstorage.Namespace)
	if before == nil {
		return api.Create(ctx, wanted, metav1.CreateOptions{})
	}
	wanted.ResourceVersion = before.ResourceVersion
	written, err := api.Update(ctx, wanted, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		c.published = nil
	}
	return written, err
}

// wanted returns the capacity of this node for a class.
func (c *capacities) wanted(ctx context.Context, name string, class *storagev1.StorageClass) *storagev1.CSIStorageCapacity {
	wanted := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       localstorage.Namespace,
			Labels:          c.labels(),
			OwnerReferences: []metav1.OwnerReference{c.owner},
		},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{localstorage.TopologyKey: c.Node}},
		StorageClassName: class.Name,
	}
	answer, err := c.Driver.GetCapacity(ctx, &csi.GetCapacityRequest{
		Parameters:         localstorage.Parameters(class),
		AccessibleTopology: topology(c.Node),
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		}},
	})
	if err != nil {
		// The scheduler avoids this node, and an Event on the claim says why.
		wanted.Annotations = map[string]string{localstorage.WhyAnnotation: plainly(err).Error()}
		wanted.Capacity = resource.NewQuantity(0, resource.BinarySI)
		return wanted
	}
	var published int64
	if before := c.published[name]; before != nil && before.Capacity != nil {
		published = before.Capacity.Value()
	}
	wanted.Capacity = resource.NewQuantity(next(published, answer.GetAvailableCapacity()), resource.BinarySI)
	return wanted
}

func (c *capacities) labels() labels.Set {
	sum := sha256.Sum256([]byte(c.Node)) // a node's name may be too long for a label's value
	return labels.Set{driverLabel: localstorage.Driver, managedByLabel: "kedge-" + hex.EncodeToString(sum[:8])}
}

func capacityName(node, class string) string {
	sum := sha256.Sum256([]byte(node + "/" + class))
	return "kedge-" + hex.EncodeToString(sum[:8])
}

// next returns the number of bytes to publish, given those published before and those available. The
// result never exceeds available and is a multiple of about a hundredth of it. A decrease is
// published when less is available than was published, an increase when it is two steps.
func next(published, available int64) int64 {
	step := stepOf(available)
	if published <= available && available < published+2*step {
		return published
	}
	return available / step * step
}

// stepOf returns a 128th of the largest power of two that is not greater than n, and at least 1.
func stepOf(n int64) int64 {
	return max(1, int64(1)<<max(0, bits.Len64(uint64(max(n, 0)))-1)/128)
}
