// Package fakecri is a container runtime that runs nothing and reports that all pods run, so that one
// machine can hold many kubelets. Benchmarks use it on hosts of tests/harness.
package fakecri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"

	"github.com/kedge-dev/kedge/tests/harness"
)

// Endpoint is the address of the runtime on a host, for kedge.
const Endpoint = "unix://" + socket

const (
	socket = "/run/fakecri.sock"
	// conflist is kedge's CNI configuration, in the folder in which runtimes look for it.
	conflist = "/etc/cni/net.d/10-kedge.conflist"
)

// Start serves upstream's fake runtime, which kubemark uses, on a host until the test ends. Like a real
// runtime it has no network before there is a CNI configuration. From that it gives each pod an
// address.
func Start(t harness.T, host *harness.Host) {
	t.Helper()
	listener, err := net.Listen("unix", host.Path(socket))
	if err != nil {
		t.Fatalf("start fake runtime on %s: %v", host.Name, err)
	}
	r := &runtime{RemoteRuntime: fake.NewFakeRemoteRuntime(), conflist: host.Path(conflist)}
	// The kubelet refuses an image without a size.
	r.ImageService.SetFakeImageSize(1 << 20)
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, r)
	cri.RegisterImageServiceServer(server, r)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
}

// Connect returns a connection to the runtime of a host.
func Connect(t harness.T, host *harness.Host) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+host.Path(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect to the fake runtime on %s: %v", host.Name, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

type runtime struct {
	*fake.RemoteRuntime
	conflist string
}

// Status reports the real state of the network.
func (r *runtime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	network := &cri.RuntimeCondition{Type: cri.NetworkReady, Status: true}
	if _, err := r.podCIDR(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{
		Conditions: []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true}, network},
	}}, nil
}

// RunPodSandbox gives the pod an unused address.
func (r *runtime) RunPodSandbox(ctx context.Context, request *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	cidr, err := r.podCIDR()
	if err != nil {
		return nil, err
	}
	response, err := r.RemoteRuntime.RunPodSandbox(ctx, request)
	if err != nil {
		return nil, err
	}
	r.RuntimeService.Lock()
	defer r.RuntimeService.Unlock()
	taken := map[string]bool{}
	for _, pod := range r.RuntimeService.Sandboxes {
		taken[pod.Network.Ip] = true
	}
	// The first address is the node's own.
	address := cidr.Masked().Addr().Next().Next()
	for taken[address.String()] {
		address = address.Next()
	}
	if !cidr.Contains(address) {
		return nil, errors.New("no address is left in " + cidr.String())
	}
	r.RuntimeService.Sandboxes[response.PodSandboxId].Network.Ip = address.String()
	return response, nil
}

// podCIDR returns the node's first pod CIDR.
func (r *runtime) podCIDR() (netip.Prefix, error) {
	text, err := os.ReadFile(r.conflist)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("find network: %w", err)
	}
	var list struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet netip.Prefix }
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return netip.Prefix{}, fmt.Errorf("read network: %w", err)
	}
	for _, plugin := range list.Plugins {
		for _, alternatives := range plugin.IPAM.Ranges {
			return alternatives[0].Subnet, nil
		}
	}
	return netip.Prefix{}, errors.New("the CNI configuration has no range of addresses")
}
