package direct

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// elsewhere is a backend in which only keys change that nobody watches.
type elsewhere struct {
	server.Backend
	began time.Time
}

// CurrentRevision returns a revision that grows with each second.
func (e elsewhere) CurrentRevision(context.Context) (int64, error) {
	return int64(time.Since(e.began) / time.Second), nil
}

func (e elsewhere) WatchRange(context.Context, string, string, int64) server.WatchResult {
	return server.WatchResult{Eventc: make(chan server.EventBatch)}
}

func (e elsewhere) WaitForSyncTo(int64) {}

func answer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return handle(ctx, request)
}

// A watch without events is told the current revision, so that compaction, which
// keeps the last five minutes, does not pass it.
func TestProgressOfItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(elsewhere{began: time.Now()}, nil, answer)
		defer s.Close()
		c := s.NewClient()
		defer c.Close()
		watch := c.Watch(t.Context(), "/registry/pods/", clientv3.WithPrefix())
		began := time.Now()
		for range 10 {
			response := <-watch
			now := int64(time.Since(began) / time.Second)
			if !response.IsProgressNotify() || response.Header.Revision != now {
				t.Fatalf("after %d s, at that revision, got %+v", now, response)
			}
			if now > 600 {
				t.Fatalf("waited %d s, want at most 600", now)
			}
		}
	})
}
