// Follows github.com/containerd/containerd/v2 v2.4.2, internal/cri/instrument/instrumented_service.go.

package containerd

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"
)

// read calls method in the way containerd's own gRPC layer does (internal/cri/instrument). It
// copies the request and the response, as the socket would, because the CRI changes filters and
// its responses share its own state.
//
//upstream:follows github.com/containerd/containerd/v2/internal/cri/instrument/instrumented_service.go instrumentedService.ListContainers instrumentedService.Status
func read[Request, Response proto.Message](ctx context.Context, method func(context.Context, Request) (Response, error), request Request) (Response, error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), readTimeout)
	defer cancel()
	response, err := method(ctx, proto.CloneOf(request))
	if err != nil {
		var none Response
		return none, errgrpc.ToGRPC(err)
	}
	return proto.CloneOf(response), nil
}
