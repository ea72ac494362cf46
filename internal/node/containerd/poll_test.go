package containerd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPoll has a runtime that needs an hour to start, and one that never does.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, notYet := time.Now(), errors.New("not ready")
		ask := func(context.Context) (bool, error) {
			if time.Since(began) < time.Hour {
				return false, notYet
			}
			return true, nil
		}
		if err := poll(t.Context(), ask); err != nil {
			t.Errorf("a slow start: got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := poll(ctx, func(context.Context) (bool, error) { return false, notYet })
		if !errors.Is(err, notYet) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a start that was stopped: got %v, want why it was not ready", err)
		}
	})
}
