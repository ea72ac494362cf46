package gateway

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// told returns what a node has said about its sockets.
func told(node *corev1.Node) string { return node.Annotations[gateways.ListeningAnnotation] }

// report writes which sockets are open, if the Node says something else. It also removes
// what an earlier kedge of this node has left when it was killed.
func (g *gateway) report(ctx context.Context, listening string) error {
	node, err := g.nodes.Get(g.cfg.NodeName)
	if err != nil {
		if listening == "" {
			return nil
		}
		return fmt.Errorf("find node %s: %w", g.cfg.NodeName, err)
	}
	if told(node) == listening {
		return nil
	}
	return g.write(ctx, listening)
}

// reported tells whether the Node says that sockets are open, as far as the cache knows.
func (g *gateway) reported() bool {
	node, err := g.nodes.Get(g.cfg.NodeName)
	return err == nil && told(node) != ""
}

// othersListen tells whether clients can go to another node.
func (g *gateway) othersListen() bool {
	// Listing a cache does not fail.
	nodes, _ := g.nodes.List(labels.Everything())
	for _, node := range nodes {
		if node.Name != g.cfg.NodeName && told(node) != "" {
			return true
		}
	}
	return false
}

// write says on the Node which sockets are open.
func (g *gateway) write(ctx context.Context, listening string) error {
	var value any // null removes the annotation
	if listening != "" {
		value, g.said = listening, true
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{gateways.ListeningAnnotation: value}}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	// The patch goes to the status, because this component may write only the node's
	// annotations.
	if _, err := g.api.CoreV1().Nodes().Patch(ctx, g.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("report the sockets of the gateway: %w", err)
	}
	g.said = listening != ""
	return nil
}
