package sqldb

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/server"
)

// TestPrepareSlowly has a database that needs an hour for an index.
func TestPrepareSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Datastore{target: &target{dialect: &dialect{
			driver: func(ctx context.Context, _ *sync.WaitGroup, _ *drivers.Config) (bool, server.Backend, error) {
				select {
				case <-time.After(time.Hour):
					return false, nil, nil
				case <-ctx.Done():
					return false, nil, ctx.Err()
				}
			},
		}}}
		if err := d.prepare(t.Context(), ""); err != nil {
			t.Errorf("got %v, want the wait for a slow database", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := d.prepare(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of a start that was stopped", err)
		}
	})
}
