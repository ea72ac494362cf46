package controlplane

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
)

// SchedulerConfig is what NewScheduler has to know.
type SchedulerConfig struct {
	API   *APIServer
	Files pki.Files
	// Election decides when it runs; nil is always.
	Election *election.Election
	// Args are the user's arguments of kube-scheduler, as name=value;
	// config=FILE sets its profiles.
	Args []string
}

// Scheduler is kube-scheduler.
type Scheduler struct {
	api      *APIServer
	election *election.Election
	options  *options.Options
}

// NewScheduler returns an error if the user's arguments, or the configuration
// file they name, are wrong.
func NewScheduler(c SchedulerConfig) (*Scheduler, error) {
	o := options.NewOptions()
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("configure scheduler: %w", err)
	}
	defaults.EnableProfiling = false
	o.ComponentConfig = defaults
	onLoopback(o.SecureServing, c.Files)
	if err := schedulerProgram.parse(*o.Flags, c.Args); err != nil {
		return nil, err
	}
	if o.ConfigFile == "" {
		o.ApplyDeprecated()
	} else {
		o.ComponentConfig, err = options.LoadConfigFromFile(klog.Background(), o.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("%s: load config: %w", schedulerProgram.option, err)
		}
	}
	// Upstream's way to lead ends the process when it ends.
	o.ComponentConfig.LeaderElection.LeaderElect = false
	return &Scheduler{c.API, c.Election, o}, nil
}

// Name implements component.Component.
func (s *Scheduler) Name() string { return "scheduler" }

// Run implements component.Component. The scheduler is ready when it has seen
// all there is to schedule, or when another server's is to run.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	ctx = klog.NewContext(ctx, klog.Background().WithName(s.Name()))
	return s.election.RunLoops(ctx, s, ready)
}

// Follow implements election.Loops: as upstream's scheduler that stands by it is
// healthy, and has metrics.
func (s *Scheduler) Follow(ctx context.Context) error {
	handler := mux.NewPathRecorderMux(schedulerProgram.name)
	healthz.InstallHandler(handler)
	healthz.InstallLivezHandler(handler)
	healthz.InstallReadyzHandler(handler)
	handler.Handle("/metrics", legacyregistry.HandlerWithReset())
	slis.SLIMetricsWithReset{}.Install(handler)
	closed, err := s.api.serveSide(ctx, s.options.SecureServing, handler)
	if err != nil {
		return err
	}
	<-ctx.Done()
	closed()
	return nil
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
	component := completed.ComponentConfig
	sched, err := scheduler.New(ctx, completed.Client, completed.InformerFactory, completed.DynInformerFactory,
		func(name string) events.EventRecorderLogger { return completed.EventBroadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(component.APIVersion),
		scheduler.WithKubeConfig(completed.KubeConfig),
		scheduler.WithProfiles(component.Profiles...),
		scheduler.WithPercentageOfNodesToScore(component.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(component.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(component.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(completed.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(component.Extenders...),
		scheduler.WithParallelism(component.Parallelism),
	)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("build scheduler: %w", err)
	}
	go func() {
		if sched.WaitForHandlersSync(ctx) == nil {
			ready()
		}
	}()
	// app.Run registers it for the whole process (kube-scheduler/app/server.go)
	// and would not run a second time.
	defer configz.Delete("componentconfig")
	// It returns an error even if it was asked to end.
	if err := app.Run(ctx, &completed, sched); ctx.Err() == nil {
		return fmt.Errorf("run scheduler: %w", err)
	}
	return nil
}

// build is upstream's Options.Config (cmd/kube-scheduler/app/options), which
// would ask for a kubeconfig and, in a pod, find the outer cluster's.
func (s *Scheduler) build(ctx context.Context) (*schedulerconfig.Config, error) {
	if faults := s.options.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("check arguments: %w", errors.Join(faults...))
	}
	serving, authentication, authorization, err := s.api.secure(s.options.SecureServing)
	if err != nil {
		return nil, err
	}
	config := s.api.ClientUntil(ctx, schedulerUser)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of scheduler: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of scheduler: %w", err)
	}
	// Upstream's has its own pods, those that have not ended, and nothing else.
	shared, err := s.api.view(ctx, objectcache.Options{
		Own:      scheduler.NewInformerFactory(client, 0),
		OwnKinds: []any{&corev1.Pod{}},
	})
	if err != nil {
		return nil, err
	}
	return &schedulerconfig.Config{
		ComponentConfig:                   *s.options.ComponentConfig,
		SecureServing:                     serving,
		Authentication:                    authentication,
		Authorization:                     authorization,
		Client:                            client,
		KubeConfig:                        config,
		InformerFactory:                   shared,
		DynInformerFactory:                dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamicClient, 0, corev1.NamespaceAll, nil),
		EventBroadcaster:                  events.NewEventBroadcasterAdapterWithContext(ctx, client),
		PodMaxInUnschedulablePodsDuration: s.options.Deprecated.PodMaxInUnschedulablePodsDuration,
		ComponentGlobalsRegistry:          s.options.ComponentGlobalsRegistry,
	}, nil
}
