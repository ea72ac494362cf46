package containerd

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shutdownPatience limits how long containers may take to end when the machine shuts down. kedge itself
// may take 30 seconds to stop.
const shutdownPatience = 20 * time.Second

// graceAnnotation has the terminationGracePeriodSeconds of a container's pod.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/labels.go podTerminationGracePeriodLabel newContainerAnnotations
const graceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// process is the first one of a container.
type process struct {
	// pidfd is the file descriptor of the process, which no other process can get.
	pidfd  int
	signal syscall.Signal
	grace  time.Duration
}

// running returns the first processes of all containers of pods that run. The caller ends them.
func running(ctx context.Context, client *containerd.Client, runtime cri.RuntimeServiceClient) ([]process, error) {
	containers, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	all, err := client.TaskService().List(ctx, &taskapi.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list processes of containers: %w", err)
	}
	pids := map[string]int{}
	for _, task := range all.Tasks {
		pids[task.ID] = int(task.Pid)
	}
	var found []process
	for _, c := range containers.Containers {
		pidfd, err := unix.PidfdOpen(pids[c.Id], 0)
		if err != nil {
			continue // it has just ended
		}
		signal := syscall.SIGTERM
		if container, err := client.LoadContainer(ctx, c.Id); err == nil {
			if own, err := containerd.GetStopSignal(ctx, container, signal); err == nil {
				signal = own
			}
		}
		found = append(found, process{pidfd, signal, graceOf(c)})
	}
	return found, nil
}

// graceOf returns how long a container may take to end.
func graceOf(container *cri.Container) time.Duration {
	seconds, err := strconv.Atoi(container.Annotations[graceAnnotation])
	if err != nil {
		return shutdownPatience
	}
	return min(time.Duration(seconds)*time.Second, shutdownPatience)
}

// endAll ends processes by their stop signals, and those that do not end by force.
func endAll(processes []process) {
	var ending sync.WaitGroup
	for _, p := range processes {
		ending.Go(func() {
			defer unix.Close(p.pidfd)
			_ = unix.PidfdSendSignal(p.pidfd, p.signal, nil, 0) // it may have ended
			if !p.endsWithin(p.grace) {
				_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
			}
		})
	}
	ending.Wait()
}

// endsWithin waits until a process has ended, and returns false if that takes longer than limit.
func (p process) endsWithin(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, max(0, int(time.Until(deadline).Milliseconds())))
		if err != unix.EINTR {
			return n > 0
		}
	}
}
