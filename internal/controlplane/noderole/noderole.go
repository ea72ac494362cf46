// Package noderole labels the node of a server with what the server runs, as kubeadm
// and k3s do. The server package makes its component.
package noderole

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
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// patience is how long an attempt may take.
const patience = 30 * time.Second

// Roles are what a server runs.
type Roles struct{ ControlPlane, Etcd bool }

// labels returns the labels of a node, and whether the node should have them. The
// kubelet cannot set them: nodes must not give themselves roles (NodeRestriction).
func (r Roles) labels() map[string]bool {
	return map[string]bool{
		"node-role.kubernetes.io/control-plane": r.ControlPlane,
		"node-role.kubernetes.io/etcd":          r.Etcd,
	}
}

// New returns the component that gives a registered node the labels of its roles and
// removes the others. It is ready after its first attempt, and tries until it succeeds.
// A webhook of the user that does not run yet may refuse the change. The labels are
// only for users, so nothing has to wait for them.
func New(client *rest.Config, node string, roles Roles) component.Component {
	return component.Func("node-role", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		announce := sync.OnceFunc(ready)
		_ = loop.Loop{Log: logrus.WithField("component", "node-role")}.Until(ctx, func(ctx context.Context) error {
			defer announce()
			if err := labelNode(ctx, api, node, roles.labels()); err != nil {
				return fmt.Errorf("cannot label node %s: %w", node, err)
			}
			return nil
		})
		<-ctx.Done()
		return nil
	})
}

func labelNode(ctx context.Context, api kubernetes.Interface, name string, labels map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
