package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// listAgain is the wait before the runtime is asked again for its pods, if it has failed.
const listAgain = time.Second

// Gate learns of the network of each pod before a container of the pod exists. Pods that use
// the node's network never get to it.
type Gate interface {
	// Running has the pods that the runtime has when the kubelet starts. It is called once, before
	// the first Admit.
	Running(ctx context.Context, pods []netpolicy.Sandbox)
	// Admit returns when the pod may send and receive. If it fails, the pod gets no container, and
	// the kubelet tries again.
	Admit(ctx context.Context, pod netpolicy.Sandbox) error
	// Gone says that the network of a sandbox is removed.
	Gone(ctx context.Context, sandbox string)
}

// gated asks a Gate before a pod gets its first container. It is between the kubelet and its client
// of the CRI, so it works with every runtime.
type gated struct {
	internalapi.RuntimeService
	gate Gate
	// listed is closed when the gate has the pods of an earlier kedge.
	listed chan struct{}

	mu sync.Mutex
	// outside are the sandboxes that the gate has not admitted. They have no container yet. An
	// earlier kedge may have made them just before it was killed.
	outside map[string]struct{}
}

// newGated returns a client of the CRI that asks gate, and tells it about the pods that there are.
func newGated(ctx context.Context, client internalapi.RuntimeService, gate Gate) *gated {
	g := &gated{RuntimeService: client, gate: gate, listed: make(chan struct{}), outside: map[string]struct{}{}}
	asking := loop.Loop{Log: logrus.WithField("component", "kubelet"), First: listAgain, Last: listAgain, Meanwhile: "no pod can start, because NetworkPolicies need the pods that run"}
	go func() {
		if asking.Until(ctx, g.list) == nil {
			close(g.listed)
		}
	}()
	return g
}

// list tells the gate about the pods that there are.
func (g *gated) list(ctx context.Context) error {
	sandboxes, err := g.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := g.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	started := map[string]bool{}
	for _, container := range containers {
		started[container.PodSandboxId] = true
	}
	var pods []netpolicy.Sandbox
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, sandbox := range sandboxes {
		pod, err := g.network(ctx, sandbox.Id)
		if crierrors.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		// A sandbox that was stopped has no address.
		if pod == nil || len(pod.Addresses) == 0 {
			continue
		}
		pods = append(pods, *pod)
		if !started[sandbox.Id] {
			g.outside[sandbox.Id] = struct{}{}
		}
	}
	g.gate.Running(ctx, pods)
	return nil
}

// network returns the network of a sandbox, or nil if that is the node's.
func (g *gated) network(ctx context.Context, id string) (*netpolicy.Sandbox, error) {
	response, err := g.PodSandboxStatus(ctx, id, false)
	if err != nil {
		return nil, fmt.Errorf("read sandbox %s: %w", id, err)
	}
	status := response.GetStatus()
	if status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE {
		return nil, nil
	}
	pod := &netpolicy.Sandbox{
		ID: id, UID: status.GetMetadata().GetUid(),
		Namespace: status.GetMetadata().GetNamespace(), Name: status.GetMetadata().GetName(),
	}
	texts := []string{status.GetNetwork().GetIp()}
	for _, other := range status.GetNetwork().GetAdditionalIps() {
		texts = append(texts, other.GetIp())
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("read address of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		pod.Addresses = append(pod.Addresses, address)
	}
	return pod, nil
}

// wait returns nil when the gate has the pods of an earlier kedge.
func (g *gated) wait(ctx context.Context) error {
	select {
	case <-g.listed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RunPodSandbox returns when the pod is admitted. If the gate refuses, the sandbox stays. The
// kubelet then continues with it, and CreateContainer asks the gate again.
func (g *gated) RunPodSandbox(ctx context.Context, config *cri.PodSandboxConfig, handler string) (string, error) {
	if err := g.wait(ctx); err != nil {
		return "", err
	}
	id, err := g.RuntimeService.RunPodSandbox(ctx, config, handler)
	if err != nil || config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == cri.NamespaceMode_NODE {
		return id, err
	}
	g.mu.Lock()
	g.outside[id] = struct{}{}
	g.mu.Unlock()
	if err := g.admit(ctx, id); err != nil {
		return "", err
	}
	return id, nil
}

// CreateContainer asks the gate about the sandbox if that has not been admitted.
func (g *gated) CreateContainer(ctx context.Context, sandbox string, config *cri.ContainerConfig, sandboxConfig *cri.PodSandboxConfig) (string, error) {
	if err := g.wait(ctx); err != nil {
		return "", err
	}
	g.mu.Lock()
	_, outside := g.outside[sandbox]
	g.mu.Unlock()
	if outside {
		if err := g.admit(ctx, sandbox); err != nil {
			return "", err
		}
	}
	return g.RuntimeService.CreateContainer(ctx, sandbox, config, sandboxConfig)
}

// admit asks the gate about a sandbox.
func (g *gated) admit(ctx context.Context, id string) error {
	pod, err := g.network(ctx, id)
	if err != nil {
		return err
	}
	if pod != nil {
		if len(pod.Addresses) == 0 {
			return fmt.Errorf("the runtime tells no address of pod %s/%s: NetworkPolicies cannot be enforced", pod.Namespace, pod.Name)
		}
		if err := g.gate.Admit(ctx, *pod); err != nil {
			return fmt.Errorf("enforce NetworkPolicies for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	g.mu.Lock()
	delete(g.outside, id)
	g.mu.Unlock()
	return nil
}

// StopPodSandbox removes the pod's network.
func (g *gated) StopPodSandbox(ctx context.Context, id string) error {
	err := g.RuntimeService.StopPodSandbox(ctx, id)
	if err == nil || crierrors.IsNotFound(err) {
		g.gone(ctx, id)
	}
	return err
}

// RemovePodSandbox removes the pod's network, if the sandbox was not stopped.
func (g *gated) RemovePodSandbox(ctx context.Context, id string) error {
	err := g.RuntimeService.RemovePodSandbox(ctx, id)
	if err == nil || crierrors.IsNotFound(err) {
		g.gone(ctx, id)
	}
	return err
}

func (g *gated) gone(ctx context.Context, id string) {
	g.mu.Lock()
	delete(g.outside, id)
	g.mu.Unlock()
	g.gate.Gone(ctx, id)
}
