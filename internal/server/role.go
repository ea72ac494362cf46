package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/component"
)

// rolePatch marks a server's node as kubeadm does. The kubelet cannot: nodes
// must not give themselves roles (NodeRestriction).
const rolePatch = `{"metadata": {"labels": {"` + roleLabel + `": "true"}}}`

// roleLabel is what rolePatch sets.
const roleLabel = "node-role.kubernetes.io/control-plane"

// newNodeRole returns the component that labels this server's node once it is
// registered. It is ready after the first try and goes on until one succeeds: a
// webhook of the user's that is not running yet may refuse it, and only what is
// shown of a node depends on it.
func newNodeRole(client *rest.Config, node string) component.Component {
	return component.Func("node-role", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		announce := sync.OnceFunc(ready)
		for {
			err := labelNode(ctx, api, node)
			announce()
			if err == nil {
				<-ctx.Done()
				return nil
			}
			if ctx.Err() == nil {
				logrus.WithField("component", "node-role").Warnf("Cannot label node %s, and will try again: %v", node, err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(roleRetry):
			}
		}
	})
}

// roleRetry is how long after a failed try the next one comes.
const roleRetry = 30 * time.Second

func labelNode(ctx context.Context, api kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, roleRetry)
	defer cancel()
	node, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if node.Labels[roleLabel] == "true" {
		return nil
	}
	_, err = api.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(rolePatch), metav1.PatchOptions{FieldManager: "kedge"})
	return err
}
