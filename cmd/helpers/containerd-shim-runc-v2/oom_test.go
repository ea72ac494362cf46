package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	eventstypes "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
)

// gone is a task service of containers that have ended, whose cgroups are gone.
type gone struct{ taskAPI.TTRPCTaskService }

func (gone) Create(context.Context, *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	return &taskAPI.CreateTaskResponse{Pid: 7}, nil
}

func (gone) Wait(context.Context, *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	return &taskAPI.WaitResponse{ExitStatus: killed}, nil
}

func (gone) Stats(context.Context, *taskAPI.StatsRequest) (*taskAPI.StatsResponse, error) {
	return nil, errors.New("the cgroup is gone")
}

func (gone) Delete(context.Context, *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	return &taskAPI.DeleteResponse{}, nil
}

// early is a task service whose containers end before it answers that they are there, or are deleted before it
// answers that they have ended.
type early struct {
	gone
	publish, remove func()
}

func (e early) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	e.publish()
	return e.gone.Create(ctx, r)
}

func (e early) Wait(ctx context.Context, r *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	e.remove()
	return e.gone.Wait(ctx, r)
}

type nowhere struct{}

func (nowhere) Publish(context.Context, string, events.Event) error { return nil }
func (nowhere) Close() error                                        { return nil }

// TestKeeper has containers whose cgroups are gone when containerd asks whether they were killed for memory.
func TestKeeper(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		event, before bool // the kernel's event was seen; the pod had a kill before
		after         string
		status        uint32
		want          bool
	}{
		"the event was seen":              {event: true, after: "oom_kill 1", status: killed, want: true},
		"only the pod's count tells":      {after: "oom_kill 1", status: killed, want: true},
		"a count from before":             {before: true, after: "oom_kill 1", status: killed},
		"one more":                        {before: true, after: "oom_kill 2", status: killed, want: true},
		"killed by somebody":              {after: "oom_kill 0", status: killed},
		"another container was killed":    {after: "oom_kill 1", status: 1},
		"a child was, and it was seen":    {event: true, after: "oom_kill 1", status: 1, want: true},
		"even the cgroup of the pod went": {event: true, status: killed, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			count := filepath.Join(root, "sys/fs/cgroup/kubepods.slice/pod.slice/memory.events")
			write(filepath.Join(root, "proc/7/cgroup"), "0::/kubepods.slice/pod.slice/a.scope\n")
			write(count, "low 0\noom 0\noom_kill 0\noom_group_kill 0\n")
			if test.before {
				write(count, "low 0\noom 1\noom_kill 1\n")
			}
			k := newKeeper(root, nowhere{})
			k.TTRPCTaskService = gone{}
			if _, err := k.Create(t.Context(), &taskAPI.CreateTaskRequest{ID: "a"}); err != nil {
				t.Fatal(err)
			}
			if test.after == "" {
				if err := os.Remove(count); err != nil {
					t.Fatal(err)
				}
			} else {
				write(count, "low 0\noom 5\n"+test.after+"\noom_group_kill 0\n")
			}
			publish := func(event events.Event) {
				if err := (publishing{k}).Publish(t.Context(), "", event); err != nil {
					t.Fatal(err)
				}
			}
			if test.event {
				publish(&eventstypes.TaskOOM{ContainerID: "a"})
			}
			publish(&eventstypes.TaskExit{ContainerID: "a", ID: "exec", ExitStatus: killed})
			ended, cancel := context.WithCancel(t.Context())
			cancel() // Wait would not return otherwise before the end is told
			if _, err := k.Wait(ended, &taskAPI.WaitRequest{ID: "a"}); err != nil || k.wasKilled("a") {
				t.Errorf("before the end: %v, killed %t", err, k.wasKilled("a"))
			}
			publish(&eventstypes.TaskExit{ContainerID: "a", ID: "a", ExitStatus: test.status})
			if _, err := k.Wait(t.Context(), &taskAPI.WaitRequest{ID: "a"}); err != nil {
				t.Error(err)
			}
			answer, err := k.Stats(t.Context(), &taskAPI.StatsRequest{ID: "a"})
			if !test.want {
				if err == nil {
					t.Errorf("got %v", answer)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			metrics, err := typeurl.UnmarshalAny(answer.Stats)
			if err != nil || metrics.(*cgroup2.Metrics).MemoryEvents.OomKill != 1 {
				t.Errorf("got %v, %v", metrics, err)
			}
			if _, err := k.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a"}); err != nil || len(k.containers) != 0 {
				t.Errorf("after the deletion: %v, %v", err, k.containers)
			}
		})
	}
}

// TestKeeperEarly checks that Wait returns whenever a container ends.
func TestKeeperEarly(t *testing.T) {
	k := newKeeper(t.TempDir(), nowhere{})
	end := func() { k.note(&eventstypes.TaskExit{ContainerID: "a", ID: "a", ExitStatus: killed}) }
	remove := func() {
		if _, err := k.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a"}); err != nil {
			t.Error(err)
		}
	}
	for name, service := range map[string]early{
		"an end before the answer":               {publish: end, remove: func() {}},
		"a deletion during the wait":             {publish: func() {}, remove: remove},
		"a wait for a container that is no more": {publish: remove, remove: func() {}},
	} {
		k.TTRPCTaskService = service
		if _, err := k.Create(t.Context(), &taskAPI.CreateTaskRequest{ID: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Wait(t.Context(), &taskAPI.WaitRequest{ID: "a"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
