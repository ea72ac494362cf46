package kubelet

import (
	"context"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet"
)

// Runtime answers in this process what the kubelet asks all the time: what
// there is, each second, and how it is. Errors are as over the socket, and what
// is returned is the caller's.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*cri.StatusResponse, error)
	ListPodSandbox(context.Context, *cri.PodSandboxFilter) ([]*cri.PodSandbox, error)
	ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error)
	ListContainerStats(context.Context, *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error)
	ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error)
	ImageFsInfo(context.Context) (*cri.ImageFsInfoResponse, error)
}

// What is done to pods and images goes over the socket nevertheless, with all
// that upstream's client knows of it. The methods of Runtime hide those of the
// client, which are one embedding deeper.
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

// useRuntime puts k.cfg.Runtime between the kubelet and its client of the CRI.
//
// Upstream makes that client itself, whatever it is given (PreInitRuntimeService,
// called in run in cmd/kubelet/app/server.go), and adjusts its OOM score as the
// last thing before it makes the kubelet from its dependencies: then is the time.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go run RunKubelet
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go PreInitRuntimeService Dependencies
func (k *Kubelet) useRuntime(dependencies *kubelet.Dependencies) {
	adjust := dependencies.OOMAdjuster.ApplyOOMScoreAdj
	dependencies.OOMAdjuster.ApplyOOMScoreAdj = func(pid, score int) error {
		dependencies.OOMAdjuster.ApplyOOMScoreAdj = adjust
		// With this feature it does not list but streams, which is not for us.
		if k.cfg.Runtime != nil && !utilfeature.DefaultFeatureGate.Enabled(features.CRIListStreaming) {
			dependencies.RemoteRuntimeService = runtimeService{k.cfg.Runtime, runtimeClient{dependencies.RemoteRuntimeService}}
			dependencies.RemoteImageService = imageService{k.cfg.Runtime, imageClient{dependencies.RemoteImageService}}
		}
		return adjust(pid, score)
	}
}
