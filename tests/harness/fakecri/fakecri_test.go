package fakecri

import (
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestPodsRun acts like a kubelet: it asks whether the runtime is ready, makes a pod, and asks
// whether the pod runs.
func TestPodsRun(t *testing.T) {
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "one")
	Start(t, host)
	conn := Connect(t, host)
	runtime, images, ctx := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), t.Context()

	for _, network := range []bool{false, true} {
		if network {
			host.WriteFile(conflist, `{"plugins": [{"ipam": {"ranges": [[{"subnet": "10.42.7.0/24"}]]}}, {}]}`)
		}
		status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, condition := range status.Status.Conditions {
			if want := condition.Type == runtimeapi.RuntimeReady || network; condition.Status != want {
				t.Errorf("%s is %v, want %v", condition.Type, condition.Status, want)
			}
		}
	}
	for i, want := range []string{"10.42.7.2", "10.42.7.3"} {
		pod, err := runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "addressed", Namespace: "default", Uid: string(rune('a' + i))},
		}})
		if err != nil {
			t.Fatal(err)
		}
		status, err := runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.PodSandboxId})
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Status.Network.Ip; got != want {
			t.Errorf("the pod has the address %s, want %s", got, want)
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
