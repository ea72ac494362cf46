// Follows github.com/containerd/containerd/v2 v2.4.2, internal/cri/config/config.go.

package containerd

import (
	"slices"

	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
)

// pullsItself returns the keys in a user's drop-ins that make the CRI pull images without
// containerd's transfer service. Such pulls ignore registries.yaml. The keys are those of
// CheckLocalImagePullConfigs in internal/cri/config/config.go.
//
//upstream:follows github.com/containerd/containerd/v2/internal/cri/config/config.go CheckLocalImagePullConfigs
func pullsItself(config *srvconfig.Config) []string {
	images, _ := config.Plugins["io.containerd.cri.v1.images"].(map[string]any)
	registry, _ := images["registry"].(map[string]any)
	var found []string
	for _, section := range []map[string]any{images, registry} {
		for key := range section {
			switch key {
			case "use_local_image_pull", "max_concurrent_downloads", "discard_unpacked_layers", "image_pull_with_sync_fs",
				"disable_snapshot_annotations", "mirrors", "configs", "auths":
				found = append(found, key)
			}
		}
	}
	slices.Sort(found)
	return found
}
