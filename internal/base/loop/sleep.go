package loop

import (
	"context"
	"time"
)

// Sleep returns nil after a time. If ctx ends before, Sleep returns the error of ctx at once.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
