package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/csi/provision"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// Storage is the local volumes of a node. Nil is that of a node without any.
type Storage struct {
	driver *csi.Driver
	// informers are known once the node's components are added.
	informers atomic.Pointer[objectcache.Source]
}

// NewStorage makes the storage of a node, for AddTo and for `kedge status`; nil if
// the cluster has it disabled.
func NewStorage(dir datadir.Dir, node string, settings config.Node, cluster config.Cluster) *Storage {
	if !cluster.LocalStorage() {
		return nil
	}
	log := logrus.WithField("component", "csi")
	return &Storage{driver: csi.New(csi.Config{
		Node:       node,
		KubeletDir: datadir.KubeletRoot,
		BaseDir:    storageFolder(dir, settings),
		Version:    version.Version,
		OnFault:    func(err error) { log.Warn(err) },
	})}
}

// storageFolder is where volumes are whose class does not say another.
func storageFolder(dir datadir.Dir, settings config.Node) string {
	if path := settings.DefaultLocalStoragePath; path != "" {
		return path
	}
	return dir.Storage()
}

// add adds what makes volumes on this node.
func (s *Storage) add(group *component.Group, cfg Config, host, api component.Component) {
	s.informers.Store(&cfg.Informers)
	group.Add(s.driver, host)
	group.Add(provision.New(provision.Config{
		Node:      cfg.Node.Name,
		Driver:    s.driver,
		Client:    cfg.Clients.ClientConfig("system:kedge:storage", pki.NodeGroup(cfg.Node.Name)),
		Informers: cfg.Informers,
	}), s.driver, api)
}

// Report is what `kedge status` shows.
func (s *Storage) Report(ctx context.Context) *status.Storage {
	if s == nil {
		return nil
	}
	report := &status.Storage{}
	volumes, err := s.driver.Volumes()
	if err != nil {
		report.Fault = err.Error()
	}
	known, complete := s.persistentVolumes(ctx)
	for _, v := range volumes {
		if v.State != volume.Ready {
			continue
		}
		shown := status.Volume{Name: v.Name, Size: v.Size, Snapshot: v.Snapshot}
		object := known[v.Name]
		if object != nil && object.Spec.ClaimRef != nil {
			shown.Claim = object.Spec.ClaimRef.Namespace + "/" + object.Spec.ClaimRef.Name
		}
		report.Volumes = append(report.Volumes, shown)
		if object == nil && complete && !v.Snapshot {
			report.Leftovers = append(report.Leftovers, status.Leftover{
				Path: filepath.Join(v.Base, v.Name),
				Reason: fmt.Sprintf("is of no PersistentVolume of this cluster, as when its claim was let go of while this node was away: "+
					"make one with the volumeHandle %s to have it again, or remove it, and %s with it", v.Name, s.driver.RecordFile(v.Name)),
			})
		}
	}
	leftovers, err := s.driver.Leftovers()
	if err != nil {
		report.Fault = err.Error()
	}
	for _, l := range leftovers {
		report.Leftovers = append(report.Leftovers, status.Leftover{Path: l.Path, Reason: l.Reason})
	}
	return report
}

// persistentVolumes returns the objects of this driver's volumes by their handles,
// and whether these are all.
func (s *Storage) persistentVolumes(ctx context.Context) (known map[string]*corev1.PersistentVolume, complete bool) {
	source := s.informers.Load()
	if source == nil {
		return nil, false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory, err := (*source)(ctx)
	if err != nil {
		return nil, false // the API is yet to be reached
	}
	defer factory.Shutdown()
	kind := factory.Core().V1().PersistentVolumes()
	// Listing a cache does not fail. The provisioner has started it.
	all, _ := kind.Lister().List(labels.Everything())
	known = map[string]*corev1.PersistentVolume{}
	for _, object := range all {
		if object.Spec.CSI != nil && object.Spec.CSI.Driver == localstorage.Driver {
			known[object.Spec.CSI.VolumeHandle] = object
		}
	}
	return known, kind.Informer().HasSynced()
}
