// Package controllers runs the controllers of kube-controller-manager as one
// component of this process. They call the API server in the same process, and
// kedge's election decides on which server they run. kedge builds some of the
// controllers itself instead of upstream's. The server package makes the component.
package controllers

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/healthz"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
)

// API is what the controllers need of the API server in this process.
type API interface {
	// ClientUntil returns the configuration of clients of a user whose requests end
	// with ctx.
	ClientUntil(ctx context.Context, user string, groups ...string) *rest.Config
	// View returns a factory of the informers that this process shares.
	View(ctx context.Context, options objectcache.Options) (informers.SharedInformerFactory, error)
	// Unused tells whether a resource is one of custom resources of which there are no
	// objects.
	Unused(ctx context.Context, resource schema.GroupResource) bool
	// Guard returns what decides who may call the controllers' port.
	Guard() (healthport.Guard, error)
}

// Config is what New has to know.
type Config struct {
	API     API
	Cluster config.Cluster
	Files   pki.Files
	// Address is where the controllers serve their health and metrics. Args override it.
	Address netip.Addr
	// Paths are answered at the controllers' port by these handlers instead of upstream's.
	Paths map[string]http.Handler
	// VolumePlugins is the folder of the user's plugins for volumes. It is made if it is missing.
	VolumePlugins string
	// Election decides when the controllers run. If it is nil, they always run.
	Election *election.Election
	// Args are the user's arguments of kube-controller-manager, as name=value.
	Args []string
}

// Manager is kube-controller-manager.
type Manager struct {
	api      API
	election *election.Election
	options  *options.KubeControllerManagerOptions
	paths    map[string]http.Handler
	podCIDRs []netip.Prefix
	csi      *csiPlugin
}

// New makes the component. It returns an error if the user's arguments are wrong.
func New(c Config) (*Manager, error) {
	o, err := newOptions(&c)
	if err != nil {
		return nil, err
	}
	return &Manager{api: c.API, election: c.Election, options: o, paths: c.Paths, podCIDRs: c.Cluster.PodCIDRs()}, nil
}

// Name implements component.Component.
func (m *Manager) Name() string { return "controllers" }

// Run implements component.Component. The controllers are ready when their
// informers have synced, or when another server is elected.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := newRangeFaults(klog.Background(), m.options.NodeIPAMController.NodeIPAMControllerConfiguration, m.podCIDRs)
	ctx = klog.NewContext(ctx, log.WithName(m.Name()))
	shared, err := m.api.View(ctx, objectcache.Options{})
	if err != nil {
		return err
	}
	defer shared.Shutdown()
	client, err := serviceAccountClients{api: m.api, ctx: ctx}.Client("attachdetach-controller")
	if err != nil {
		return fmt.Errorf("create client of controllers: %w", err)
	}
	if m.csi, err = newCSIPlugin(shared, client); err != nil {
		return err
	}
	return m.election.RunLoops(ctx, m, ready)
}

// Lead implements election.Loops: it builds all controllers and runs them.
func (m *Manager) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	completed, err := m.complete()
	if err != nil {
		return err
	}
	health := healthz.NewMutableHealthzHandler()
	base := m.handler(health)
	wait, err := healthport.Serve(ctx, m.options.SecureServing, m.api.Guard, base)
	if err != nil {
		return err
	}
	defer wait()
	defer cancel()
	return m.control(ctx, completed, base, health, ready)
}

// Follow implements election.Follower: it serves health and metrics.
func (m *Manager) Follow(ctx context.Context) error {
	return healthport.Follow(ctx, m.options.SecureServing, m.api.Guard, m.handler(healthz.NewMutableHealthzHandler()))
}
