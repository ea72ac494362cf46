package server

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
)

// roleLabels are the labels that mark what a server runs, as kubeadm and k3s have
// them. The kubelet cannot set them: nodes must not give themselves roles
// (NodeRestriction).
func roleLabels(cfg config.Server, store *state) map[string]bool {
	return map[string]bool{
		"node-role.kubernetes.io/control-plane": !cfg.DisableAPIServer,
		"node-role.kubernetes.io/etcd":          store.member != nil,
	}
}

// newNodeRole returns the component that gives this server's node the labels that
// are true once it is registered, and takes the others away. It is ready after the first try and goes on until one succeeds: a
// webhook of the user's that is not running yet may refuse it, and only what is
// shown of a node depends on it.
func newNodeRole(client *rest.Config, node string, labels map[string]bool) component.Component {
	return component.Func("node-role", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		announce := sync.OnceFunc(ready)
		for {
			err := labelNode(ctx, api, node, labels)
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

func labelNode(ctx context.Context, api kubernetes.Interface, name string, labels map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, roleRetry)
	defer cancel()
	node, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch := map[string]any{} // null takes a label away
	for label, want := range labels {
		switch value, has := node.Labels[label]; {
		case want && value != "true":
			patch[label] = "true"
		case !want && has:
			patch[label] = nil
		}
	}
	if len(patch) == 0 {
		return nil
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": patch}})
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	_, err = api.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, text, metav1.PatchOptions{FieldManager: "kedge"})
	return err
}
