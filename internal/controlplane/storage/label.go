package storage

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// The functions in this file give claims and volumes the label by which a node gets
// them from the API. The claim's annotation and the volume's node affinity still
// decide which node that is.

// label gives a claim the label of a node, or of all nodes if node is empty.
func (c *claims) label(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	if value, ok := claim.Labels[localstorage.TopologyKey]; ok && value == node {
		return nil
	}
	patch, err := labelPatch(node)
	if err != nil {
		return err
	}
	_, err = c.api.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("label claim: %w", err)
	}
	return nil
}

// labelVolume gives a volume the label of its node. Volumes made by a node have it.
// Those of a user or of an older kedge may not.
func (c *claims) labelVolume(ctx context.Context, name string) error {
	volume, err := c.volumes.Get(name)
	if err != nil {
		return nil // gone, or the name is that of another kind
	}
	node, ours := localstorage.NodeOf(volume)
	if !ours || volume.Labels[localstorage.TopologyKey] == node {
		return nil
	}
	patch, err := labelPatch(node)
	if err != nil {
		return err
	}
	_, err = c.api.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("label volume: %w", err)
	}
	return nil
}

func labelPatch(node string) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{localstorage.TopologyKey: node}}})
	if err != nil {
		return nil, fmt.Errorf("encode label: %w", err)
	}
	return patch, nil
}
