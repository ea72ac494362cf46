package gateway

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
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
	return slices.ContainsFunc(nodes, func(node *corev1.Node) bool { return node.Name != g.cfg.NodeName && told(node) != "" })
}

// write says on the Node which sockets are open.
func (g *gateway) write(ctx context.Context, listening string) error {
	g.said = g.said || listening != ""
	if err := nodeobject.Annotate(ctx, g.api.CoreV1().Nodes(), g.cfg.NodeName, map[string]string{gateways.ListeningAnnotation: listening}); err != nil {
		return fmt.Errorf("report the sockets of the gateway: %w", err)
	}
	g.said = listening != ""
	return nil
}
