// Package csi is the storage driver of a node. It implements the Identity, Controller and Node
// services of the Container Storage Interface. The kubelet calls it over a socket, and the
// provisioner in this process calls it directly. It does not depend on Kubernetes. The package
// volume does the work on disks. The agent package runs the driver.
package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// The name of the driver, and the node label by which Kubernetes finds a volume's node.
const (
	Name        = localstorage.Driver
	TopologyKey = localstorage.TopologyKey
)

// Config is what New needs.
type Config struct {
	// Node is the node's name.
	Node string
	// KubeletDir is the kubelet's folder, in which the kubelet looks for drivers.
	KubeletDir string
	// BaseDir is the folder of the records, and of the volumes whose StorageClass names no other
	// folder.
	BaseDir string
	// Version is the version of kedge.
	Version string
	// OnFault is called with errors in what a crash has left behind.
	OnFault func(error)
}

// Driver is a component and a csi.ControllerServer.
type Driver struct {
	csi.UnimplementedControllerServer
	cfg   Config
	store *volume.Store
	// registers is closed when the kubelet can register the driver.
	registers chan struct{}
	once      sync.Once
	// coming has a progress for each volume whose contents come from a backup.
	coming sync.Map
}

var _ csi.ControllerServer = (*Driver)(nil)

// New returns the driver of a node.
func New(cfg Config) *Driver {
	return &Driver{cfg: cfg, store: volume.NewStore(cfg.BaseDir, cfg.KubeletDir), registers: make(chan struct{})}
}

// Register makes the driver register with the kubelet, at once or as soon as the driver runs. Call
// it when the node is in the API: the kubelet refuses the driver before that, and tries again only
// after a while.
func (d *Driver) Register(context.Context) error {
	d.once.Do(func() { close(d.registers) })
	return nil
}

// Name implements component.Component.
func (d *Driver) Name() string { return "csi" }

// socket returns the path of the socket on which the kubelet calls the driver.
func (d *Driver) socket() string {
	return filepath.Join(d.cfg.KubeletDir, "plugins", Name, "csi.sock")
}

// registration returns the path of the socket by which the kubelet finds the driver.
func (d *Driver) registration() string {
	return filepath.Join(d.cfg.KubeletDir, "plugins_registry", Name+"-reg.sock")
}

// Run implements component.Component. It first thaws what a crash left frozen. While the driver
// serves, it removes what a crash left half made, because a large directory may take minutes. When
// it stops, all volumes stay mounted.
func (d *Driver) Run(ctx context.Context, ready func()) error {
	if err := d.store.Thaw(); err != nil {
		d.cfg.OnFault(err)
	}
	// A kedge that was killed has left the socket. The kubelet would call it, and nobody would answer.
	if err := os.Remove(d.registration()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	// Making and copying volumes ends with its context, and cleans up.
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(server, &identity{version: d.cfg.Version})
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, &nodeServer{node: d.cfg.Node, store: d.store, coming: &d.coming})
	registration.RegisterRegistrationServer(server, &registrar{socket: d.socket(), onFault: d.cfg.OnFault})

	// The kubelet watches the folder of the second socket, and then calls the first.
	listener, err := localapi.Listen(d.socket())
	if err != nil {
		return err
	}
	defer listener.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(server, listener) })
	group.Go(func() error {
		select {
		case <-d.registers:
		case <-ctx.Done():
			return nil
		}
		registering, err := localapi.Listen(d.registration())
		if err != nil {
			return err
		}
		defer registering.Close()
		return serve(server, registering)
	})
	group.Go(func() error {
		if err := d.store.Recover(ctx); err != nil && ctx.Err() == nil {
			d.cfg.OnFault(err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	ready()
	if err := group.Wait(); err != nil {
		return fmt.Errorf("serve storage driver: %w", err)
	}
	return nil
}

func serve(server *grpc.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // stopped before it served
}

// Volumes returns all volumes and snapshots of this node, including those that are half made or
// half removed.
func (d *Driver) Volumes() ([]*volume.Volume, error) { return d.store.List() }

// RecordFile returns the path of a volume's record.
func (d *Driver) RecordFile(name string) string { return d.store.RecordFile(name) }

// Leftovers returns the volumes that `kedge status` shows because somebody must decide about them.
func (d *Driver) Leftovers() ([]volume.Leftover, error) { return d.store.Leftovers() }

// registrar registers the driver with the kubelet.
type registrar struct {
	registration.UnimplementedRegistrationServer
	socket  string
	onFault func(error)
}

// GetInfo implements registration.RegistrationServer.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		r.onFault(fmt.Errorf("the kubelet refuses to register the storage driver: %s", status.Error))
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// identity is the driver's identity service.
type identity struct {
	csi.UnimplementedIdentityServer
	version string
}

// GetPluginInfo implements csi.IdentityServer.
func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: i.version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe implements csi.IdentityServer.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
