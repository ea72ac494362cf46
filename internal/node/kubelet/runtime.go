package kubelet

import (
	"context"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet"
)

// Runtime answers the kubelet's frequent queries within this process: the list of pods and
// containers, every second, and their state. Its errors are those that the socket would return. The
// caller owns the results.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*cri.StatusResponse, error)
	ListPodSandbox(context.Context, *cri.PodSandboxFilter) ([]*cri.PodSandbox, error)
	ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error)
	ListContainerStats(context.Context, *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error)
	ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error)
	ImageFsInfo(context.Context) (*cri.ImageFsInfoResponse, error)
}

// Changes of pods and images still go over the socket, through upstream's client. The methods of
// Runtime hide the client's methods of the same names, which are embedded one level deeper.
type (
	runtimeService struct {
		Runtime
		runtimeClient
	}
	runtimeClient struct{ internalapi.RuntimeService }

	imageService struct {
		Runtime
		imageClient
	}
	imageClient struct {
		internalapi.ImageManagerService
	}
)

// useRuntime puts k.cfg.Runtime, and k.cfg.Gate, between the kubelet and its client of the CRI, and
// claimsOnly before its container manager.
//
// Upstream always makes these itself (PreInitRuntimeService and NewContainerManager, called in run in
// cmd/kubelet/app/server.go). After that, and before it makes the kubelet from its dependencies, it
// adjusts its OOM score, so that call is where they can be replaced.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go run RunKubelet
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go PreInitRuntimeService Dependencies
func (k *Kubelet) useRuntime(ctx context.Context, dependencies *kubelet.Dependencies) {
	adjust := dependencies.OOMAdjuster.ApplyOOMScoreAdj
	dependencies.OOMAdjuster.ApplyOOMScoreAdj = func(pid, score int) error {
		dependencies.OOMAdjuster.ApplyOOMScoreAdj = adjust
		dependencies.ContainerManager = claimsOnly{dependencies.ContainerManager}
		// With this feature the kubelet streams lists, which Runtime cannot do.
		if k.cfg.Runtime != nil && !utilfeature.DefaultFeatureGate.Enabled(features.CRIListStreaming) {
			dependencies.RemoteRuntimeService = runtimeService{k.cfg.Runtime, runtimeClient{dependencies.RemoteRuntimeService}}
			dependencies.RemoteImageService = imageService{k.cfg.Runtime, imageClient{dependencies.RemoteImageService}}
		}
		if k.measuring != nil {
			k.measureOnRequest(dependencies)
		}
		if k.cfg.Gate != nil {
			dependencies.RemoteRuntimeService = newGated(ctx, dependencies.RemoteRuntimeService, k.cfg.Gate)
		}
		return adjust(pid, score)
	}
}
