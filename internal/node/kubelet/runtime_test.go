package kubelet

import (
	"context"
	"errors"
	"testing"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/util/oom"
)

// fakeRuntime and fakeClient say who they are by their errors.
type (
	fakeRuntime struct{ Runtime }
	fakeClient  struct{ internalapi.RuntimeService }
)

var errInProcess, errSocket = errors.New("in process"), errors.New("socket")

func (fakeRuntime) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, errInProcess
}

func (fakeClient) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, errSocket
}

func (fakeClient) StartContainer(context.Context, string) error { return errSocket }

func TestUseRuntime(t *testing.T) {
	for name, test := range map[string]struct {
		runtime Runtime
		want    error
	}{
		"containerd in this process": {fakeRuntime{}, errInProcess},
		"a runtime elsewhere":        {nil, errSocket},
	} {
		t.Run(name, func(t *testing.T) {
			adjusted := 0
			dependencies := &kubelet.Dependencies{OOMAdjuster: &oom.OOMAdjuster{
				ApplyOOMScoreAdj: func(int, int) error { adjusted++; return nil },
			}}
			(&Kubelet{cfg: Config{Runtime: test.runtime}}).useRuntime(dependencies)
			dependencies.RemoteRuntimeService = fakeClient{} // as run() does
			for range 2 {
				if err := dependencies.OOMAdjuster.ApplyOOMScoreAdj(0, -999); err != nil {
					t.Fatal(err)
				}
			}
			if adjusted != 2 {
				t.Errorf("OOM score was adjusted %d times, want 2", adjusted)
			}
			service := dependencies.RemoteRuntimeService
			if _, err := service.ListContainers(t.Context(), nil); !errors.Is(err, test.want) {
				t.Errorf("containers are listed by %v, want %v", err, test.want)
			}
			if err := service.StartContainer(t.Context(), "c"); !errors.Is(err, errSocket) {
				t.Errorf("containers are started by %v, want %v", err, errSocket)
			}
		})
	}
}
