package fakecri

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestPodsRun does what a kubelet does: it looks whether the runtime is ready,
// makes a pod, and looks whether that runs.
func TestPodsRun(t *testing.T) {
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "one")
	endpoint := Start(t, host)

	conn, err := grpc.NewClient("unix://"+host.Path(strings.TrimPrefix(endpoint, "unix://")), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	runtime, images, ctx := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), t.Context()

	status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range status.Status.Conditions {
		if !condition.Status {
			t.Errorf("%s is not true", condition.Type)
		}
	}
	metadata := &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "1"}
	config := &runtimeapi.PodSandboxConfig{Metadata: metadata}
	sandbox, err := runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	image := &runtimeapi.ImageSpec{Image: "example.com/image:1"}
	if _, err := images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, SandboxConfig: config}); err != nil {
		t.Fatal(err)
	}
	container, err := runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  sandbox.PodSandboxId,
		Config:        &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: image},
		SandboxConfig: config,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	list, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Containers) != 1 || list.Containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the containers are %v", list.Containers)
	}
}
