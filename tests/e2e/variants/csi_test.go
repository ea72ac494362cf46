package variants

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	driverName   = "test.csi.kedge.dev"
	driverSocket = "/var/lib/kubelet/plugins/" + driverName + "/csi.sock"
)

// TestCSIDriver registers a storage driver in the usual way, and checks that the node has it: at
// the first start, and after a restart. The kubelet's CSI plugin shares variables with that of the
// controllers.
func TestCSIDriver(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	c := start(t, host)
	driver := grpc.NewServer()
	t.Cleanup(driver.Stop)
	registration.RegisterRegistrationServer(driver, fakeDriver{})
	csi.RegisterNodeServer(driver, fakeDriver{})
	csi.RegisterIdentityServer(driver, fakeDriver{})
	for _, path := range []string{driverSocket, "/var/lib/kubelet/plugins_registry/" + driverName + "-reg.sock"} {
		if err := os.MkdirAll(filepath.Dir(host.Path(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", host.Path(path))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = driver.Serve(listener) }()
	}
	for range 2 {
		c.eventually("the driver to be on the node", func() error {
			node, err := c.client.StorageV1().CSINodes().Get(c.ctx, host.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, d := range node.Spec.Drivers {
				if d.Name == driverName && d.NodeID == "node-of-the-driver" {
					return nil
				}
			}
			return fmt.Errorf("drivers are %v", node.Spec.Drivers)
		})
		// The kubelet must write it again.
		c.kubectl("delete", "csinode", host.Name)
		c.server.Restart()
	}
}

// fakeDriver implements the least that the kubelet needs from a driver.
type fakeDriver struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer
	registration.UnimplementedRegistrationServer
}

func (fakeDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, Endpoint: driverSocket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (fakeDriver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		return nil, errors.New(status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (fakeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-of-the-driver"}, nil
}

func (fakeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}
