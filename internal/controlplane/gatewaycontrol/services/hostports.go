package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// hostPorts knows the pods with host ports, such as those of another ingress controller. It
// is told of all pods, and keeps only these.
type hostPorts struct {
	stage *objectcache.Stage

	mu   sync.Mutex
	pods map[string]hostPod
}

// hostPod is a pod with host ports: NUMBER/PROTOCOL.
type hostPod struct {
	node  string
	ports []string
}

// watchHostPorts begins to watch. changed is called after each change.
func watchHostPorts(ctx context.Context, informers objectcache.Source, changed func()) (*hostPorts, error) {
	stage, err := objectcache.NewStage(ctx, informers)
	if err != nil {
		return nil, err
	}
	h := &hostPorts{stage: stage, pods: map[string]hostPod{}}
	if err := stage.Handle(stage.Core().V1().Pods().Informer(), h.handler(changed)); err != nil {
		stage.Stop()
		return nil, err
	}
	stage.Start()
	return h, nil
}

// stop ends watching. It may be called on nil.
func (h *hostPorts) stop() {
	if h != nil {
		h.stage.Stop()
	}
}

func (h *hostPorts) handler(changed func()) cache.ResourceEventHandler {
	set := func(object any) {
		pod, is := object.(*corev1.Pod)
		if is && h.set(pod.Namespace+"/"+pod.Name, hostPodOf(pod)) {
			changed()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, now any) { set(now) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil && h.set(key, hostPod{}) {
				changed()
			}
		},
	}
}

// set notes the host ports of a pod. It tells whether there is a change.
func (h *hostPorts) set(key string, now hostPod) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, had := h.pods[key]
	if len(now.ports) == 0 {
		delete(h.pods, key)
		return had
	}
	h.pods[key] = now
	return !had || before.node != now.node || !slices.Equal(before.ports, now.ports)
}

// hostPodOf returns the host ports of a pod that may run.
func hostPodOf(pod *corev1.Pod) hostPod {
	found := hostPod{node: pod.Spec.NodeName}
	if found.node == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return hostPod{}
	}
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			address, err := netip.ParseAddr(port.HostIP)
			if port.HostPort == 0 || err == nil && address.IsLoopback() {
				continue
			}
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			found.ports = append(found.ports, fmt.Sprintf("%d/%s", port.HostPort, strings.ToLower(string(protocol))))
		}
	}
	return found
}

// owned is a port of a front that a pod of a node has as a host port.
type owned struct {
	port front.Port
	// pod is NAMESPACE/NAME. Of several pods it is the one whose name is first.
	pod string
}

// find returns the ports of a front that pods of a node have as host ports.
func (h *hostPorts) find(node string, ports []front.Port) (all []owned) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, port := range ports {
		text, first := fmt.Sprintf("%d/%s", port.Number, port.Transport), ""
		for key, found := range h.pods {
			if found.node == node && slices.Contains(found.ports, text) && (first == "" || key < first) {
				first = key
			}
		}
		if first != "" {
			all = append(all, owned{port, first})
		}
	}
	return all
}
