package carry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The annotations of a pod that has commands for before and after the copy of its volumes are Velero's: a prefix and one of the
// names.
const (
	beforePrefix = "pre.hook.backup.velero.io/"
	afterPrefix  = "post.hook.backup.velero.io/"

	commandName   = "command"
	containerName = "container"
	onErrorName   = "on-error"
	timeoutName   = "timeout"
)

// A command may take firstTimeout by default, and longestTimeout if its annotation says so.
const (
	firstTimeout   = 30 * time.Second
	longestTimeout = 10 * time.Minute
)

// The labels of the CRI with the name of a container and the pod of it.
//
//upstream:relies-on k8s.io/kubelet/pkg/types/labels.go KubernetesContainerNameLabel
const containerLabel = "io.kubernetes.container.name"

// runtime is the part of the node's runtime that runs commands in containers.
type runtime interface {
	ListContainers(ctx context.Context, in *cri.ListContainersRequest, options ...grpc.CallOption) (*cri.ListContainersResponse, error)
	ContainerStatus(ctx context.Context, in *cri.ContainerStatusRequest, options ...grpc.CallOption) (*cri.ContainerStatusResponse, error)
	PodSandboxStatus(ctx context.Context, in *cri.PodSandboxStatusRequest, options ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error)
	ExecSync(ctx context.Context, in *cri.ExecSyncRequest, options ...grpc.CallOption) (*cri.ExecSyncResponse, error)
}

// hooks are the commands of the pods that use a volume.
type hooks struct {
	runtime
	before, after []hook
}

// hook is a command in a container.
type hook struct {
	container, pod string
	command        []string
	timeout        time.Duration
	// mayFail is true if the volume is backed up although the command has failed.
	mayFail bool
}

// hooksOf returns the commands of the pods that use a volume now. The runtime knows the annotations of a pod as those of its sandbox.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/labels.go newPodAnnotations
func hooksOf(ctx context.Context, r runtime, volume string) (*hooks, error) {
	running, err := r.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	h := &hooks{runtime: r}
	seen := map[string]bool{}
	for _, c := range running.Containers {
		if seen[c.PodSandboxId] {
			continue
		}
		uses, err := mounts(ctx, r, c.Id, volume)
		if err != nil {
			return nil, err
		}
		if !uses {
			continue
		}
		seen[c.PodSandboxId] = true
		sandbox, err := r.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: c.PodSandboxId})
		if err != nil {
			return nil, fmt.Errorf("look at a pod: %w", err)
		}
		for prefix, list := range map[string]*[]hook{beforePrefix: &h.before, afterPrefix: &h.after} {
			if err := addHook(list, sandbox.GetStatus(), prefix, c, running.Containers); err != nil {
				return nil, err
			}
		}
	}
	return h, nil
}

// mounts tells whether a container has a volume.
func mounts(ctx context.Context, r runtime, container, volume string) (bool, error) {
	status, err := r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		return false, fmt.Errorf("look at a container: %w", err)
	}
	for _, mount := range status.GetStatus().GetMounts() {
		if strings.Contains(mount.HostPath, "/kubernetes.io~csi/"+volume+"/") {
			return true, nil
		}
	}
	return false, nil
}

// addHook adds the command of a pod, if it has one with the prefix. It runs in the container that has the volume, unless an annotation
// names another one.
func addHook(list *[]hook, pod *cri.PodSandboxStatus, prefix string, user *cri.Container, all []*cri.Container) error {
	annotations := pod.GetAnnotations()
	text := annotations[prefix+commandName]
	if text == "" {
		return nil
	}
	name := pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
	h := hook{container: user.Id, pod: name, command: []string{text}, timeout: firstTimeout, mayFail: annotations[prefix+onErrorName] == "Continue"}
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if err := json.Unmarshal([]byte(text), &h.command); err != nil || len(h.command) == 0 {
			return fmt.Errorf("the annotation %s of pod %s is neither a program nor a JSON array", prefix+commandName, name)
		}
	}
	if text := annotations[prefix+timeoutName]; text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("the annotation %s of pod %s is no duration, such as 30s", prefix+timeoutName, name)
		}
		h.timeout = min(timeout, longestTimeout)
	}
	if wanted := annotations[prefix+containerName]; wanted != "" {
		h.container = ""
		for _, c := range all {
			if c.PodSandboxId == user.PodSandboxId && c.Labels[containerLabel] == wanted {
				h.container = c.Id
			}
		}
		if h.container == "" {
			return fmt.Errorf("the annotation %s of pod %s names the container %s, which does not run", prefix+containerName, name, wanted)
		}
	}
	*list = append(*list, h)
	return nil
}

// around runs the commands before and after do. Those after it run also if something has failed, so that a pod that was stopped goes on.
func (h *hooks) around(ctx context.Context, do func() error) error {
	var err error
	for _, hook := range h.before {
		if err = h.run(ctx, hook); err != nil {
			break
		}
	}
	if err == nil {
		err = do()
	}
	for _, hook := range h.after {
		err = errors.Join(err, h.run(context.WithoutCancel(ctx), hook))
	}
	return err
}

// run runs a command.
func (h *hooks) run(ctx context.Context, hook hook) error {
	answer, err := h.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: hook.container, Cmd: hook.command, Timeout: int64(hook.timeout.Seconds())})
	if err == nil && answer.ExitCode != 0 {
		said := strings.TrimSpace(string(answer.Stderr))
		err = fmt.Errorf("it ended with status %d: %.200s", answer.ExitCode, said)
	}
	if err == nil || hook.mayFail {
		return nil
	}
	return fmt.Errorf("the command %q of pod %s: %w", strings.Join(hook.command, " "), hook.pod, err)
}
