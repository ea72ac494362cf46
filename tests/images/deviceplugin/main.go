// Command deviceplugin is a device plugin of a kubelet, as those of graphics cards are. It has two
// devices called kedge.test/null. A container with one has /dev/kedge-null, which is the host's /dev/null.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const endpoint = "kedge-null.sock"

func main() {
	for {
		if err := serve(); err != nil {
			log.Print(err)
		}
		time.Sleep(time.Second)
	}
}

// serve serves a kubelet until that kubelet ends, which removes the sockets of all plugins when it starts.
func serve() error {
	path := v1beta1.DevicePluginPath + endpoint
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, plugin{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := register(); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		time.Sleep(time.Second)
	}
}

func register() error {
	kubelet, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(kubelet).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: "kedge.test/null",
	})
	return err
}

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
}

func (plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	devices := []*v1beta1.Device{{ID: "first", Health: v1beta1.Healthy}, {ID: "second", Health: v1beta1.Healthy}}
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs:    map[string]string{"KEDGE_DEVICES": strings.Join(container.DevicesIds, ",")},
			Devices: []*v1beta1.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/kedge-null", Permissions: "rw"}},
		})
	}
	return response, nil
}
