package server

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/component"
)

// rolePatch marks a server's node as kubeadm does. The kubelet cannot: nodes
// must not give themselves roles (NodeRestriction).
const rolePatch = `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "true"}}}`

// newNodeRole returns the component that labels this server's node once it is
// registered.
func newNodeRole(client *rest.Config, node string) component.Component {
	return component.Step("node-role", func(ctx context.Context) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := api.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(rolePatch), metav1.PatchOptions{FieldManager: "kedge"}); err != nil {
			return fmt.Errorf("label node %s: %w", node, err)
		}
		return nil
	})
}
