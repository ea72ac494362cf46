package flight

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// patience is how long a node may take to answer.
const patience = time.Minute

// Ask asks a node for its recording, by way of the API. core is a client of the core API.
func Ask(ctx context.Context, core rest.Interface, node string, since time.Duration) (*recording.Recording, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := core.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(recorder.Path).Param("since", since.String()).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the cluster has no node %s, or its kedge is older and has no recorder: `kedge kubectl get nodes` lists the nodes with their versions", node)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: use the kubeconfig of an administrator, or run `kedge recorder` on that host", err)
	case err != nil:
		return nil, fmt.Errorf("ask node %s for its recording: %w. If the node is not ready, run `kedge recorder` on that host", node, err)
	}
	return recording.Parse(text), nil
}
