package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/util/sets"
)

// criKind is the label by which the CRI finds its containers, and criFolders are the folders in which it keeps
// those of each kind.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/labels/labels.go ContainerKindLabel ContainerKindSandbox ContainerKindContainer
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/helpers.go sandboxesDir containersDir
const criKind = "io.cri-containerd.kind"

var criFolders = map[string]string{"container": "containers", "sandbox": "sandboxes"}

// forgetHalfRemoved deletes what is left of containers that the CRI has removed while containerd did not have
// their snapshotter: overlayfs is missing if the kernel may not load its module. The CRI then takes a container
// for one that containerd does not know, and removes its folder alone. Each later start would log an error about
// the container. root is containerd's own folder, which a drop-in may have moved.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/container_remove.go criService.RemoveContainer
func (c *Containerd) forgetHalfRemoved(ctx context.Context, client *containerd.Client, root string) error {
	for kind, folder := range criFolders {
		containers, err := client.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%s", criKind, kind))
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		// The CRI makes a container's folder first, so that all folders of these containers are there now.
		entries, err := os.ReadDir(filepath.Join(root, criPlugin, folder))
		if err != nil {
			continue // what cannot be read says nothing about the containers
		}
		kept := sets.New[string]()
		for _, entry := range entries {
			kept.Insert(entry.Name())
		}
		for _, container := range containers {
			if kept.Has(container.ID) {
				continue
			}
			c.log.Infof("Forgetting container %s, which was removed without its snapshot", container.ID)
			if err := client.ContainerService().Delete(ctx, container.ID); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("forget container %s: %w", container.ID, err)
			}
		}
	}
	return nil
}
