package containerd

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeService shares its state with its answers, as the CRI does.
type fakeService struct {
	service
	labels    map[string]string
	namespace string
}

func (f *fakeService) ListContainers(ctx context.Context, request *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	f.namespace, _ = namespaces.Namespace(ctx)
	if request.Filter != nil {
		request.Filter.Id = "completed"
	}
	return &cri.ListContainersResponse{Containers: []*cri.Container{{Labels: f.labels}}}, nil
}

func (*fakeService) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return nil, errdefs.ErrNotFound
}

func TestReaderIsLikeTheSocket(t *testing.T) {
	fake := &fakeService{labels: map[string]string{"a": "1"}}
	reader := &Reader{service: fake}

	filter := &cri.ContainerFilter{Id: "comp"}
	containers, err := reader.ListContainers(t.Context(), filter)
	if err != nil || len(containers) != 1 {
		t.Fatalf("ListContainers returned %v, %v", containers, err)
	}
	if fake.namespace != namespace {
		t.Errorf("the call was for namespace %q, want %q", fake.namespace, namespace)
	}
	containers[0].Labels["a"] = "2"
	if fake.labels["a"] != "1" {
		t.Error("a change of the returned container changed containerd's own: want a copy")
	}
	if filter.Id != "comp" {
		t.Error("the caller's filter was changed")
	}
	if _, err := reader.ListContainers(t.Context(), nil); err != nil {
		t.Errorf("ListContainers without a filter: %v", err)
	}

	if _, err := reader.ImageFsInfo(t.Context()); status.Code(err) != codes.NotFound {
		t.Errorf("ImageFsInfo returned %v, want a status of gRPC", err)
	}
}
