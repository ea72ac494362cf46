package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/util/oom"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// fakePods is a runtime with sandboxes.
type fakePods struct {
	internalapi.RuntimeService
	sandboxes  map[string]*cri.PodSandboxStatus
	containers []*cri.Container
	failures   int
}

func fakeSandbox(id string, addresses ...string) *cri.PodSandboxStatus {
	s := &cri.PodSandboxStatus{Id: id, Metadata: &cri.PodSandboxMetadata{Namespace: "ns", Name: "pod-" + id, Uid: "uid-" + id}, Network: &cri.PodSandboxNetworkStatus{}}
	for i, address := range addresses {
		if i == 0 {
			s.Network.Ip = address
		} else {
			s.Network.AdditionalIps = append(s.Network.AdditionalIps, &cri.PodIP{Ip: address})
		}
	}
	return s
}

func onHost(s *cri.PodSandboxStatus) *cri.PodSandboxStatus {
	s.Linux = &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}}
	return s
}

func (f *fakePods) ListPodSandbox(context.Context, *cri.PodSandboxFilter) (all []*cri.PodSandbox, err error) {
	if f.failures > 0 {
		f.failures--
		return nil, errors.New("not yet")
	}
	for id := range f.sandboxes {
		all = append(all, &cri.PodSandbox{Id: id})
	}
	return append(all, &cri.PodSandbox{Id: "removed"}), nil
}

func (f *fakePods) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return f.containers, nil
}

func (f *fakePods) PodSandboxStatus(_ context.Context, id string, _ bool) (*cri.PodSandboxStatusResponse, error) {
	if f.sandboxes[id] == nil {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return &cri.PodSandboxStatusResponse{Status: f.sandboxes[id]}, nil
}

func (f *fakePods) RunPodSandbox(_ context.Context, config *cri.PodSandboxConfig, _ string) (string, error) {
	f.sandboxes["new"] = fakeSandbox("new", "10.42.0.9")
	if config.GetLinux() != nil {
		onHost(f.sandboxes["new"])
	}
	return "new", nil
}

func (*fakePods) CreateContainer(context.Context, string, *cri.ContainerConfig, *cri.PodSandboxConfig) (string, error) {
	return "container", nil
}

func (*fakePods) StopPodSandbox(context.Context, string) error   { return nil }
func (*fakePods) RemovePodSandbox(context.Context, string) error { return errors.New("busy") }

// fakeGate notes what it is told.
type fakeGate struct {
	t       *testing.T
	running chan []netpolicy.Sandbox
	events  []string
	refuse  error
}

func (g *fakeGate) Running(_ context.Context, pods []netpolicy.Sandbox) { g.running <- pods }

func (g *fakeGate) Admit(_ context.Context, pod netpolicy.Sandbox) error {
	g.events = append(g.events, fmt.Sprintf("admit %s %s/%s %s %v", pod.ID, pod.Namespace, pod.Name, pod.UID, pod.Addresses))
	return g.refuse
}

func (g *fakeGate) Gone(_ context.Context, id string) { g.events = append(g.events, "gone "+id) }

func (g *fakeGate) had(what string, events ...string) {
	g.t.Helper()
	if !slices.Equal(g.events, events) {
		g.t.Errorf("%s: the gate was told %q, want %q", what, g.events, events)
	}
	g.events = nil
}

func TestGate(t *testing.T) {
	runtime := &fakePods{
		sandboxes: map[string]*cri.PodSandboxStatus{
			"old": fakeSandbox("old", "10.42.0.2", "fd00::2"), "fresh": fakeSandbox("fresh", "10.42.0.3"), "host": onHost(fakeSandbox("host", "192.0.2.1")), "stopped": fakeSandbox("stopped"),
		},
		containers: []*cri.Container{{PodSandboxId: "old"}},
		failures:   1,
	}
	gate := &fakeGate{t: t, running: make(chan []netpolicy.Sandbox, 1)}
	dependencies := &kubelet.Dependencies{OOMAdjuster: &oom.OOMAdjuster{ApplyOOMScoreAdj: func(int, int) error { return nil }}}
	(&Kubelet{cfg: Config{Gate: gate}}).useRuntime(t.Context(), dependencies)
	dependencies.RemoteRuntimeService = runtime
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(dependencies.OOMAdjuster.ApplyOOMScoreAdj(0, 0))
	service := dependencies.RemoteRuntimeService

	// A new pod waits for the list of the others.
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := service.RunPodSandbox(cancelled, nil, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a pod started before the list: %v", err)
	}
	pods := <-gate.running
	slices.SortFunc(pods, func(a, b netpolicy.Sandbox) int { return -compareID(a, b) })
	want := []netpolicy.Sandbox{
		{ID: "old", Namespace: "ns", Name: "pod-old", UID: "uid-old", Addresses: []netip.Addr{netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("fd00::2")}},
		{ID: "fresh", Namespace: "ns", Name: "pod-fresh", UID: "uid-fresh", Addresses: []netip.Addr{netip.MustParseAddr("10.42.0.3")}},
	}
	if !reflect.DeepEqual(pods, want) {
		t.Errorf("running are %+v, want %+v", pods, want)
	}

	create := func(sandbox string) error {
		_, err := service.CreateContainer(t.Context(), sandbox, nil, nil)
		return err
	}
	must(create("old"))
	gate.had("a container of a pod that runs")
	must(create("fresh"))
	must(create("fresh"))
	gate.had("containers of a pod that was just made", "admit fresh ns/pod-fresh uid-fresh [10.42.0.3]")

	id, err := service.RunPodSandbox(t.Context(), &cri.PodSandboxConfig{}, "")
	must(err)
	must(create(id))
	gate.had("a new pod", "admit new ns/pod-new uid-new [10.42.0.9]")
	must(service.StopPodSandbox(t.Context(), id))
	gate.had("a pod that is stopped", "gone new")
	if service.RemovePodSandbox(t.Context(), id) == nil {
		t.Error("the runtime's error is lost")
	}
	gate.had("a pod that cannot be removed")

	gate.refuse = errors.New("no")
	for range 2 {
		if _, err := service.RunPodSandbox(t.Context(), &cri.PodSandboxConfig{}, ""); !errors.Is(err, gate.refuse) {
			t.Errorf("a pod that was refused starts: %v", err)
		}
		if err := create("new"); !errors.Is(err, gate.refuse) {
			t.Errorf("a pod that was refused gets a container: %v", err)
		}
		gate.events = nil
	}
	gate.refuse = nil
	must(create("new"))
	gate.had("a pod that was refused before", "admit new ns/pod-new uid-new [10.42.0.9]")
	host := &cri.PodSandboxConfig{Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}}}
	_, err = service.RunPodSandbox(t.Context(), host, "")
	must(err)
	must(create("new"))
	gate.had("a pod with the node's network")
}

func compareID(a, b netpolicy.Sandbox) int {
	if a.ID < b.ID {
		return -1
	}
	return 1
}
