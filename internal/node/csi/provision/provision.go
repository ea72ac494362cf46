// Package provision makes and deletes the volumes of claims on one node. For kedge's CSI driver it
// does what external-provisioner and csi-snapshotter of the kubernetes-csi project do for other
// drivers, but in the driver's process. The agent package runs it on every node.
package provision

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// Config is what New needs.
type Config struct {
	// Node is this node's name.
	Node string
	// Driver makes and deletes volumes and snapshots.
	Driver csi.ControllerServer
	// Client calls as system:kedge:storage, in the group of this node.
	Client *rest.Config
	// Informers provide claims, volumes, StorageClasses and nodes.
	Informers objectcache.Source
}

// New returns the component. It is ready when it makes volumes.
func New(cfg Config) component.Component {
	return component.Func("provisioner", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		snapshots, err := snapshotclient.NewForConfig(localstorage.JSON(cfg.Client))
		if err != nil {
			return fmt.Errorf("make client of snapshots: %w", err)
		}
		room := newCapacities(cfg, api)
		group := component.Group{OnReady: ready}
		group.Add(room)
		group.Add(newClaims(cfg, api, snapshots, room.refresh), room)
		group.Add(newSnapshots(cfg, api, snapshots, room.refresh))
		return group.Run(ctx)
	})
}

// topology returns the driver's description of a node.
func topology(node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{localstorage.TopologyKey: node}}
}
