package teardown

import (
	"context"
	"errors"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/kedge-dev/kedge/internal/node/runtimesocket"
)

// runtimePatience is how long a container runtime may take to stop all pods.
const runtimePatience = 2 * time.Minute

// StopPods stops and removes the kubelet's pods in a container runtime that is not
// kedge's. Other pods and containers there stay.
func StopPods(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, runtimePatience)
	defer cancel()
	client, conn, err := runtimesocket.Connect(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	pods, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods of the runtime at %s: %w: if kedge's pods are left there, remove them with `crictl rmp --force --all`", socket, err)
	}
	var faults []error
	for _, pod := range pods.Items {
		if pod.Labels[kubelettypes.KubernetesPodUIDLabel] == "" {
			continue
		}
		_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.Id})
		if err == nil {
			_, err = client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.Id})
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("stop pod %s in the runtime at %s: %w", pod.Metadata.GetName(), socket, err))
		}
	}
	return errors.Join(faults...)
}
