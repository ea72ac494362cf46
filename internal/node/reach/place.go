package reach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	runtimespec "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/kedge-dev/kedge/internal/node/runtimesocket"
)

// errNoNetwork is the error for a pod that no connection can begin at.
var errNoNetwork = errors.New("the pod has no network on this node now: `kedge why` for the pod says why")

// place is where connections begin: a pod, or the node itself.
type place struct {
	// netns is the file of the pod's network namespace. It is empty for the node, and for a pod in the network of the node.
	netns string
	// resolver is the resolv.conf of the pod.
	resolver string
}

// dial connects from a place.
func dial(ctx context.Context, from place, network, address string) (conn net.Conn, err error) {
	if from.netns == "" {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	// The socket stays in the namespace in which it was made.
	err = ns.WithNetNSPath(from.netns, func(ns.NetNS) error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// placeOf asks the container runtime for the network and the resolv.conf of a pod.
func placeOf(ctx context.Context, socket, namespace, name string) (place, error) {
	runtime, conn, err := runtimesocket.Connect(socket)
	if err != nil {
		return place{}, err
	}
	defer conn.Close()
	ready, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{kubelettypes.KubernetesPodNamespaceLabel: namespace, kubelettypes.KubernetesPodNameLabel: name},
	}})
	if err != nil {
		return place{}, fmt.Errorf("list pods of the container runtime: %w", err)
	}
	if len(ready.Items) == 0 {
		return place{}, errNoNetwork
	}
	newest := slices.MaxFunc(ready.Items, func(a, b *cri.PodSandbox) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	status, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: newest.Id, Verbose: true})
	if err != nil {
		return place{}, fmt.Errorf("look at the pod: %w", err)
	}
	return readPlace(status)
}

// longestResolver is how much of a resolv.conf is read, in bytes. Programs in the pod may be able to write it.
const longestResolver = 64 << 10

// readPlace reads what containerd tells of a pod beyond the CRI.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/podsandbox/types/sandbox_info.go SandboxInfo
func readPlace(status *cri.PodSandboxStatusResponse) (p place, err error) {
	var info struct {
		Spec *runtimespec.Spec `json:"runtimeSpec"`
	}
	err = json.Unmarshal([]byte(status.Info["info"]), &info)
	if err != nil || info.Spec == nil || info.Spec.Linux == nil {
		return p, errors.New("the container runtime does not tell where the network of a pod is: kedge's own containerd does")
	}
	for _, n := range info.Spec.Linux.Namespaces {
		if n.Type == runtimespec.NetworkNamespace {
			p.netns = n.Path
		}
	}
	inNode := status.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE
	if p.netns == "" && !inNode {
		return p, errNoNetwork // the node's own network must never take its place
	}
	for _, m := range info.Spec.Mounts {
		if m.Destination == "/etc/resolv.conf" {
			p.resolver, err = readSome(m.Source)
		}
	}
	return p, err
}

// readSome returns the beginning of a file.
func readSome(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the pod's resolv.conf: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, longestResolver))
	if err != nil {
		return "", fmt.Errorf("read the pod's resolv.conf: %w", err)
	}
	return string(text), nil
}
