// Package csi is the storage driver of a node: Identity, Controller and Node of the
// Container Storage Interface, for the kubelet over a socket and for the provisioner
// of this process by calls. It needs no Kubernetes; what it does to disks is in the
// package volume. The agent package runs it.
package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// What the driver is called, and the label of a node by which volumes are found.
const (
	Name        = localstorage.Driver
	TopologyKey = localstorage.TopologyKey
)

// Config is what the driver has to know.
type Config struct {
	// Node is the node's name.
	Node string
	// KubeletDir is the kubelet's folder, in which it looks for drivers.
	KubeletDir string
	// BaseDir is the folder of the records, and of the volumes whose class does not
	// say another.
	BaseDir string
	// Version is kedge's.
	Version string
	// OnFault is told what is wrong with what a crash has left.
	OnFault func(error)
}

// Driver is a component, and a csi.ControllerServer.
type Driver struct {
	csi.UnimplementedControllerServer
	cfg   Config
	store *volume.Store
}

var _ csi.ControllerServer = (*Driver)(nil)

// New makes the driver of a node.
func New(cfg Config) *Driver {
	return &Driver{cfg: cfg, store: volume.NewStore(cfg.BaseDir, cfg.KubeletDir)}
}

// Name implements component.Component.
func (d *Driver) Name() string { return "csi" }

// socket is where the kubelet calls the driver.
func (d *Driver) socket() string {
	return filepath.Join(d.cfg.KubeletDir, "plugins", Name, "csi.sock")
}

// Run implements component.Component. What a crash has left frozen is thawed first;
// what it has left half made is removed while the driver serves, as a large
// directory may take minutes. Stopping leaves all volumes mounted.
func (d *Driver) Run(ctx context.Context, ready func()) error {
	if err := d.store.Thaw(); err != nil {
		d.cfg.OnFault(err)
	}
	// What is being made or copied ends with its context, and cleans up.
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(server, &identity{version: d.cfg.Version})
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, &nodeServer{node: d.cfg.Node, store: d.store})
	registration.RegisterRegistrationServer(server, &registrar{socket: d.socket(), onFault: d.cfg.OnFault})

	var listeners []net.Listener
	// The kubelet watches the folder of the last one, and calls the other then.
	for _, socket := range []string{d.socket(), filepath.Join(d.cfg.KubeletDir, "plugins_registry", Name+"-reg.sock")} {
		listener, err := localapi.Listen(socket)
		if err != nil {
			return err
		}
		defer listener.Close()
		listeners = append(listeners, listener)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, listener := range listeners {
		group.Go(func() error {
			if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
				return err
			}
			return nil // stopped before it served
		})
	}
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

// Volumes are all volumes and snapshots of this node, also those that are half made
// or half gone.
func (d *Driver) Volumes() ([]*volume.Volume, error) { return d.store.List() }

// RecordFile is where the record of a volume is.
func (d *Driver) RecordFile(name string) string { return d.store.RecordFile(name) }

// Leftovers are what `kedge status` shows of volumes that need somebody.
func (d *Driver) Leftovers() ([]volume.Leftover, error) { return d.store.Leftovers() }

// registrar tells the kubelet of the driver.
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
		r.onFault(fmt.Errorf("the kubelet does not take the storage driver: %s", status.Error))
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
