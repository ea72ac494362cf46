package storage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// The functions in this file give claims and volumes the label by which a node gets
// them from the API. The claim's annotation and the volume's node affinity still
// decide which node that is.

// label gives a claim the label of a node, or of all nodes if node is empty.
func (c *claims) label(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	if value, ok := claim.Labels[localstorage.TopologyKey]; ok && value == node {
		return nil
	}
	err := mergepatch.Send(ctx, c.api.CoreV1().PersistentVolumeClaims(claim.Namespace), claim.Name, labelChange(node))
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
	err = mergepatch.Send(ctx, c.api.CoreV1().PersistentVolumes(), name, labelChange(node))
	if err := localstorage.IgnoreOutdated(err); err != nil {
		return fmt.Errorf("label volume: %w", err)
	}
	return nil
}

// labelChange returns the change of an object that gives it the label of a node.
func labelChange(node string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": map[string]string{localstorage.TopologyKey: node}}}
}
