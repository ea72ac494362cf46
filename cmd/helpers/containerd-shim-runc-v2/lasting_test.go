package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
)

// slowTasks needs half a minute to delete a container, if the caller waits for that long.
type slowTasks struct {
	taskAPI.TTRPCTaskService
	calls int
}

func (s *slowTasks) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	s.calls++
	select {
	case <-time.After(30 * time.Second):
		return &taskAPI.DeleteResponse{Pid: 7}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestLasting has a caller that gives up after 10 seconds, and calls again, as containerd does.
func TestLasting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := &slowTasks{}
		l := &lasting{TTRPCTaskService: tasks}
		var err error
		for attempt := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			var answer *taskAPI.DeleteResponse
			answer, err = l.Delete(ctx, &taskAPI.DeleteRequest{ID: "a"})
			cancel()
			if err == nil {
				if answer.Pid != 7 || attempt != 2 || tasks.calls != 1 {
					t.Errorf("attempt %d has the answer %v after %d deletions", attempt, answer, tasks.calls)
				}
				break
			}
			if errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if err != nil {
			t.Errorf("the container was never deleted: %v", err)
		}
	})
}
