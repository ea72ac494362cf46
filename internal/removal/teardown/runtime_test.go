package teardown

import (
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

func TestStopPods(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := StopPods(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "crictl rmp") {
		t.Errorf("stop pods without a runtime: got error %v, want one that names crictl", err)
	}
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start("unix://" + socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Stop)
	for name, labels := range map[string]map[string]string{
		"kubelet's":  {"io.kubernetes.pod.uid": "1"},
		"by crictl":  nil,
		"kubelet's2": {"io.kubernetes.pod.uid": "2"},
	} {
		config := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name}, Labels: labels}
		if _, err := runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	if err := StopPods(t.Context(), socket); err != nil {
		t.Fatal(err)
	}
	left, err := runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Metadata.Name != "by crictl" {
		t.Errorf("got pods %v, %v, want the one made by crictl", left.GetItems(), err)
	}
}
