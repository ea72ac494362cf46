package status

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// Volumes returns a function that describes a node's local volumes for `kedge status`:
// the volumes of its driver, with their claims from the informers.
func Volumes(driver *csi.Driver, informers objectcache.Source) func(context.Context) *Storage {
	return func(ctx context.Context) *Storage { return readVolumes(ctx, driver, informers) }
}

func readVolumes(ctx context.Context, driver *csi.Driver, informers objectcache.Source) *Storage {
	report := &Storage{}
	volumes, err := driver.Volumes()
	if err != nil {
		report.Fault = err.Error()
	}
	known, complete := persistentVolumes(ctx, informers)
	for _, v := range volumes {
		if v.State != volume.Ready {
			continue
		}
		shown := Volume{Name: v.Name, Size: v.Size, Snapshot: v.Snapshot}
		object := known[v.Name]
		if object != nil && object.Spec.ClaimRef != nil {
			shown.Claim = object.Spec.ClaimRef.Namespace + "/" + object.Spec.ClaimRef.Name
		}
		report.Volumes = append(report.Volumes, shown)
		if object == nil && complete && !v.Snapshot {
			report.Leftovers = append(report.Leftovers, Leftover{
				Path: filepath.Join(v.Base, v.Name),
				Reason: fmt.Sprintf("belongs to no PersistentVolume of this cluster. Its claim was probably deleted while this node was offline. "+
					"To use the volume again, create a PersistentVolume with the volumeHandle %s. To delete it, remove it and %s", v.Name, driver.RecordFile(v.Name)),
			})
		}
	}
	leftovers, err := driver.Leftovers()
	if err != nil {
		report.Fault = err.Error()
	}
	for _, l := range leftovers {
		report.Leftovers = append(report.Leftovers, Leftover{Path: l.Path, Reason: l.Reason})
	}
	return report
}

// persistentVolumes returns the PersistentVolumes of this driver by their handles, and
// whether these are all.
func persistentVolumes(ctx context.Context, informers objectcache.Source) (known map[string]*corev1.PersistentVolume, complete bool) {
	_, factory, end, err := informers.Open(ctx)
	if err != nil {
		return nil, false // the API cannot be reached yet
	}
	defer end()
	kind := factory.Core().V1().PersistentVolumes()
	// Listing a cache does not fail. The provisioner has started this cache.
	all, _ := kind.Lister().List(labels.Everything())
	known = map[string]*corev1.PersistentVolume{}
	for _, object := range all {
		if object.Spec.CSI != nil && object.Spec.CSI.Driver == localstorage.Driver {
			known[object.Spec.CSI.VolumeHandle] = object
		}
	}
	return known, kind.Informer().HasSynced()
}
