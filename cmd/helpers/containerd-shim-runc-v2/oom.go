package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	eventstypes "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/typeurl/v2"
)

// killed is the status of a process that SIGKILL has ended.
const killed = 137

// keeper remembers which containers the kernel has killed for memory. containerd reads that from the container's cgroup
// after the end (oomMetricsEventOccurred in internal/cri/server/events.go). With systemd's cgroup driver, systemd removes
// the cgroup as soon as its last process is gone, and the container's reason is then Error in place of OOMKilled. The
// cgroup of the pod, which counts its children's kills too, is still there.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/events.go criService.handleContainerExit criService.oomMetricsEventOccurred
type keeper struct {
	taskAPI.TTRPCTaskService
	publisher shim.Publisher
	root      string

	mu         sync.Mutex
	containers map[string]*kept
	// kills are the kills in the cgroups of pods that are known already.
	kills map[string]uint64
}

// kept is what a keeper knows of a container.
type kept struct {
	pod string // the cgroup of its pod, or empty
	oom bool
	// ended is closed when it is known whether the container was killed for memory.
	ended chan struct{}
}

func (c *kept) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

func (c *kept) end() {
	if !c.hasEnded() {
		close(c.ended)
	}
}

func newKeeper(root string, publisher shim.Publisher) *keeper {
	return &keeper{root: root, publisher: publisher, containers: map[string]*kept{}, kills: map[string]uint64{}}
}

// Create implements taskAPI.TTRPCTaskService. The container may end before the answer is there.
func (k *keeper) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	k.mu.Lock()
	k.containers[r.ID] = &kept{ended: make(chan struct{})}
	k.mu.Unlock()
	answer, err := k.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		k.forget(r.ID)
		return nil, err
	}
	pod := k.podOf(answer.Pid)
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.containers[r.ID]; c != nil {
		c.pod = pod
	}
	if _, known := k.kills[pod]; !known {
		k.kills[pod] = k.killsIn(pod)
	}
	return answer, nil
}

// Wait implements taskAPI.TTRPCTaskService. It does not return before it is known whether the container was killed for
// memory: containerd asks for that next.
func (k *keeper) Wait(ctx context.Context, r *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	k.mu.Lock()
	c := k.containers[r.ID]
	k.mu.Unlock()
	answer, err := k.TTRPCTaskService.Wait(ctx, r)
	if err != nil || c == nil || r.ExecID != "" {
		return answer, err
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	return answer, nil
}

// Stats implements taskAPI.TTRPCTaskService. A container that has ended has no statistics any more. If the kernel has
// killed it for memory, the answer still says so.
func (k *keeper) Stats(ctx context.Context, r *taskAPI.StatsRequest) (*taskAPI.StatsResponse, error) {
	answer, err := k.TTRPCTaskService.Stats(ctx, r)
	if !k.wasKilled(r.ID) {
		return answer, err
	}
	metrics := &cgroup2.Metrics{}
	if err == nil {
		if known, err := typeurl.UnmarshalAny(answer.Stats); err == nil {
			if m, is := known.(*cgroup2.Metrics); is {
				metrics = m
			}
		}
	}
	if metrics.MemoryEvents == nil {
		metrics.MemoryEvents = &cgroup2.MemoryEvents{}
	}
	metrics.MemoryEvents.OomKill = max(metrics.MemoryEvents.OomKill, 1)
	data, err := typeurl.MarshalAny(metrics)
	if err != nil {
		return nil, fmt.Errorf("encode metrics: %w", err)
	}
	return &taskAPI.StatsResponse{Stats: typeurl.MarshalProto(data)}, nil
}

// wasKilled tells whether a container has ended, and was killed for memory.
func (k *keeper) wasKilled(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.containers[id]
	return c != nil && c.oom && c.hasEnded()
}

// Delete implements taskAPI.TTRPCTaskService.
func (k *keeper) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	answer, err := k.TTRPCTaskService.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		k.forget(r.ID)
	}
	return answer, err
}

// forget removes a container. Nobody waits for it any longer.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.containers[id]; c != nil {
		c.end()
		delete(k.containers, id)
	}
}

// note takes note of an event. Upstream's service stops watching a container's cgroup before it tells that the container
// has ended.
//
//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/service.go service.handleProcessExit service.oomEvent
func (k *keeper) note(event events.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch e := event.(type) {
	case *eventstypes.TaskOOM:
		if c := k.containers[e.ContainerID]; c != nil {
			c.oom, k.kills[c.pod] = true, k.killsIn(c.pod)
		}
	case *eventstypes.TaskExit:
		c := k.containers[e.ContainerID]
		if c == nil || e.ID != e.ContainerID {
			return
		}
		if now := k.killsIn(c.pod); now > k.kills[c.pod] {
			// Only the count of the pod tells of this kill.
			c.oom, k.kills[c.pod] = c.oom || e.ExitStatus == killed, now
		}
		c.end()
	}
}

// podOf returns the cgroup above that of a process.
func (k *keeper) podOf(pid uint32) string {
	text, err := os.ReadFile(filepath.Join(k.root, "proc", fmt.Sprint(pid), "cgroup"))
	path, found := strings.CutPrefix(strings.TrimSpace(string(text)), "0::/")
	if err != nil || !found || filepath.Dir(path) == "." {
		return ""
	}
	return filepath.Dir(path)
}

// killsIn returns how many processes of a cgroup and of those below it were killed for memory.
func (k *keeper) killsIn(cgroup string) (kills uint64) {
	if cgroup == "" {
		return 0
	}
	f, err := os.Open(filepath.Join(k.root, "sys/fs/cgroup", cgroup, "memory.events"))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "oom_kill %d", &kills); err == nil {
			return kills
		}
	}
	return 0
}

// publishing is the publisher that upstream's service gets.
type publishing struct{ *keeper }

// Publish implements events.Publisher.
func (p publishing) Publish(ctx context.Context, topic string, event events.Event) error {
	p.note(event)
	return p.publisher.Publish(ctx, topic, event)
}

// Close implements shim.Publisher.
func (p publishing) Close() error { return p.publisher.Close() }
