package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kedge-dev/kedge/internal/component"
)

// newNodeReady returns the component that is ready once the API says that the
// node is.
func newNodeReady(cfg Config) component.Component {
	return component.Step("node", func(ctx context.Context) error {
		client, err := kubernetes.NewForConfig(cfg.nodeClient())
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "",
			fields.OneTermEqualSelector("metadata.name", cfg.Node.Name))
		_, err = watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
			node, ok := event.Object.(*corev1.Node)
			return ok && isReady(node), nil
		})
		if err != nil {
			return fmt.Errorf("wait until node %s is ready: %w", cfg.Node.Name, err)
		}
		return nil
	})
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
