package main

import (
	"context"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/singleflight"
)

// lasting goes on with a deletion when its caller has given up. containerd waits for 10 seconds, and calls again, at
// intervals that grow to 5 minutes. With upstream's service alone, each call begins anew. On a machine that needs more
// than 10 seconds, a container that has ended would never be deleted, and it would be called Running for good.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/events.go criService.startContainerExitMonitor criService.handleContainerExit
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/events/events.go EventMonitor.Start
//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/init.go Init.delete
type lasting struct {
	taskAPI.TTRPCTaskService
	deletions singleflight.Group
}

// RegisterTTRPC implements shim.TTRPCService.
func (l *lasting) RegisterTTRPC(server *ttrpc.Server) error {
	taskAPI.RegisterTTRPCTaskService(server, l)
	return nil
}

// Delete implements taskAPI.TTRPCTaskService. A call during a deletion waits for its end. After the end, the container
// is unknown, and containerd takes that for deleted.
func (l *lasting) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	deletion := l.deletions.DoChan(r.ID+"/"+r.ExecID, func() (any, error) {
		return l.TTRPCTaskService.Delete(context.WithoutCancel(ctx), r)
	})
	select {
	case result := <-deletion:
		answer, _ := result.Val.(*taskAPI.DeleteResponse)
		return answer, result.Err
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
}
