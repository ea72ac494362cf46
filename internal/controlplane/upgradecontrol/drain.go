package upgradecontrol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// drained is how far a node is that is being drained.
type drained struct {
	// left says which pods are left. It is empty when none is.
	left string
	// refused says which pods a drain must not touch.
	refused string
}

// maxNamed is how many pods, or nodes that have failed, a message names.
const maxNamed = 5

// drainOnce evicts the pods of a node that are left, as `kubectl drain --ignore-daemonsets`
// does. It does not wait until they are gone: it is called again until none is left.
func drainOnce(ctx context.Context, api kubernetes.Interface, node string, how *upgrades.Drain) (drained, error) {
	helper := &drain.Helper{
		Ctx: ctx, Client: api, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true,
		Force: how.Force, DeleteEmptyDirData: how.DeleteEmptyDirData,
	}
	pods, faults := helper.GetPodsForDeletion(node)
	if pods == nil {
		return drained{}, fmt.Errorf("list the pods of node %s: %w", node, errors.Join(faults...))
	}
	if len(faults) > 0 {
		// The messages name flags of kubectl.
		return drained{refused: fmt.Sprintf("%v. In a Plan these are spec.drain.force and spec.drain.deleteEmptyDirData", errors.Join(faults...))}, nil
	}
	var left []string
	for _, pod := range pods.Pods() {
		text := pod.Namespace + "/" + pod.Name
		if pod.DeletionTimestamp == nil {
			switch err := helper.EvictPod(pod, policyv1.SchemeGroupVersion); {
			case err == nil, apierrors.IsNotFound(err):
			case apierrors.IsTooManyRequests(err):
				text += " (a PodDisruptionBudget keeps it)"
			case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
				// It is deleted with its namespace.
			default:
				// The drain must end in time also then, such as for a pod with two budgets.
				text += fmt.Sprintf(" (%v)", err)
			}
		}
		left = append(left, text)
	}
	if len(left) == 0 {
		return drained{}, nil
	}
	slices.Sort(left)
	named := strings.Join(left[:min(len(left), maxNamed)], ", ")
	if len(left) > maxNamed {
		named += ", …"
	}
	return drained{left: count(len(left), "pod is", "pods are") + " left: " + named}, nil
}

// cordon makes a node get no new pods, and notes that a Plan wanted that.
func cordon(ctx context.Context, api kubernetes.Interface, n *node, plan string) error {
	return patch(ctx, api, n, true, &plan)
}

// uncordon takes cordon back.
func uncordon(ctx context.Context, api kubernetes.Interface, n *node) error {
	return patch(ctx, api, n, false, nil)
}

// patch fails with a conflict if the Node is newer.
func patch(ctx context.Context, api kubernetes.Interface, n *node, unschedulable bool, plan *string) error {
	err := mergepatch.Send(ctx, api.CoreV1().Nodes(), n.name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.resourceVersion, "annotations": map[string]any{upgrades.CordonAnnotation: plan}},
		"spec":     map[string]any{"unschedulable": unschedulable},
	})
	if err != nil {
		return fmt.Errorf("cordon or uncordon node %s: %w", n.name, err)
	}
	return nil
}
