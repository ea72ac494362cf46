// Package fakecri is a container runtime that runs nothing and says that all
// pods run, so that one machine can hold many kubelets. Benchmarks put it on
// hosts of tests/harness.
package fakecri

import (
	"k8s.io/cri-client/pkg/fake"

	"github.com/kedge-dev/kedge/tests/harness"
)

// socket is where it listens on a host.
const socket = "/run/fakecri.sock"

// Start serves upstream's fake runtime, the one of kubemark, on a host until
// the test ends. It returns the endpoint, for the kubelet.
func Start(t harness.T, host *harness.Host) (endpoint string) {
	t.Helper()
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start("unix://" + host.Path(socket)); err != nil {
		t.Fatalf("start fake runtime on %s: %v", host.Name, err)
	}
	t.Cleanup(runtime.Stop)
	return "unix://" + socket
}
