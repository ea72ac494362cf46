// Package scheduler runs kube-scheduler as a component of this process. It calls
// the API server beside it in process, shares that server's informers, and
// kedge's election decides where it runs. The server package makes the component.
package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/configz"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/arguments"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
)

// API is what the scheduler needs of the API server in this process.
type API interface {
	// ClientUntil returns the configuration of clients of a user whose requests end
	// with ctx.
	ClientUntil(ctx context.Context, user string, groups ...string) *rest.Config
	// View returns a factory of the informers that this process shares.
	View(ctx context.Context, options objectcache.Options) (informers.SharedInformerFactory, error)
	// Guard returns what decides who may call the scheduler's port.
	Guard() (healthport.Guard, error)
}

// Config is what New has to know.
type Config struct {
	API API
	// CertFile and KeyFile are the certificate of the scheduler's port.
	CertFile, KeyFile string
	// Address is where the scheduler serves its health and metrics. Args override it.
	Address netip.Addr
	// Paths are answered at the scheduler's port by these handlers instead of upstream's.
	Paths map[string]http.Handler
	// Election decides when the scheduler runs. If it is nil, it always runs.
	Election *election.Election
	// Args are the user's arguments of kube-scheduler, as name=value;
	// config=FILE sets its profiles.
	Args []string
}

var program = arguments.Program{Name: "kube-scheduler", Option: "kube-scheduler-arg", Refused: map[string]string{
	"kubeconfig":                arguments.InProcess,
	"master":                    arguments.InProcess,
	"authentication-kubeconfig": arguments.InProcess,
	"authorization-kubeconfig":  arguments.InProcess,
	"leader-elect":              arguments.OneLeader,
	"write-config-to":           "it would end without having scheduled anything",
}}

// Scheduler is kube-scheduler.
type Scheduler struct {
	api      API
	election *election.Election
	options  *options.Options
	paths    map[string]http.Handler
}

// New makes the component. It returns an error if the user's arguments, or the
// configuration file that they name, are wrong.
func New(c Config) (*Scheduler, error) {
	o := options.NewOptions()
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("configure scheduler: %w", err)
	}
	defaults.EnableProfiling = false
	o.ComponentConfig = defaults
	healthport.SetDefaults(o.SecureServing, c.Address, c.CertFile, c.KeyFile)
	if err := program.Parse(*o.Flags, c.Args); err != nil {
		return nil, err
	}
	if err := setComponentConfig(o); err != nil {
		return nil, fmt.Errorf("%s: %w", program.Option, err)
	}
	// Upstream ends the process when it loses an election.
	o.ComponentConfig.LeaderElection.LeaderElect = false
	return &Scheduler{c.API, c.Election, o, c.Paths}, nil
}

// Name implements component.Component.
func (s *Scheduler) Name() string { return "scheduler" }

// Run implements component.Component. The scheduler is ready when it has seen
// all there is to schedule, or when another server is elected.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	ctx = klog.NewContext(ctx, klog.Background().WithName(s.Name()))
	return s.election.RunLoops(ctx, s, ready)
}

// Follow implements election.Follower: it serves health and metrics.
func (s *Scheduler) Follow(ctx context.Context) error {
	return healthport.Follow(ctx, s.options.SecureServing, s.api.Guard, s.newHandler(nil))
}

// Lead implements election.Loops: it builds a scheduler and runs it.
func (s *Scheduler) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	built, err := s.build(ctx)
	if err != nil {
		return err
	}
	completed := built.Complete()
	defer completed.InformerFactory.Shutdown()
	defer cancel()
	sched, err := newScheduler(ctx, &completed)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("build scheduler: %w", err)
	}
	synced := make(chan struct{})
	wait, err := healthport.Serve(ctx, s.options.SecureServing, s.api.Guard, s.newHandler(&completed, readyChecks(ctx, synced)...))
	if err != nil {
		return err
	}
	defer wait()
	defer cancel()
	go func() {
		if sched.WaitForHandlersSync(ctx) == nil {
			close(synced)
			ready()
		}
	}()
	// app.Run registers it for the whole process (kube-scheduler/app/server.go), and
	// fails if it is registered already.
	//upstream:relies-on k8s.io/kubernetes/cmd/kube-scheduler/app/server.go Run
	defer configz.Delete("componentconfig")
	// It returns an error even if ctx has ended.
	if err := app.Run(ctx, &completed, sched); ctx.Err() == nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	return nil
}
