// Follows k8s.io/kubernetes v1.37.2, cmd/kube-scheduler/app/server.go.

package scheduler

import (
	"context"
	"errors"
	"net/http"
	"runtime"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/logs"
	zpages "k8s.io/component-base/zpages/features"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/metrics/resources"

	"github.com/kedge-dev/kedge/internal/base/metrics"
)

// newScheduler builds the scheduler as upstream's Setup does.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/server.go Setup
func newScheduler(ctx context.Context, completed *schedulerconfig.CompletedConfig) (*scheduler.Scheduler, error) {
	component := completed.ComponentConfig
	return scheduler.New(ctx, completed.Client, completed.InformerFactory, completed.DynInformerFactory,
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
}

// newHandler answers on the scheduler's port, as upstream's newEndpointsHandler does, with
// the handlers of s.paths instead of upstream's. leading is nil while another server's
// scheduler leads.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/server.go newEndpointsHandler installMetricHandler
func (s *Scheduler) newHandler(leading *schedulerconfig.CompletedConfig, readyChecks ...healthz.HealthChecker) http.Handler {
	handler := mux.NewPathRecorderMux(program.Name)
	healthz.InstallHandler(handler)
	healthz.InstallLivezHandler(handler)
	healthz.InstallReadyzHandler(handler, readyChecks...)
	metrics.Install(handler, s.paths)
	if leading == nil {
		return handler
	}
	configz.InstallHandler(handler)
	handler.Handle("/metrics/resources", resources.Handler(leading.InformerFactory.Core().V1().Pods().Lister()))
	if leading.ComponentConfig.EnableProfiling {
		routes.Profiling{}.Install(handler)
		if leading.ComponentConfig.EnableContentionProfiling {
			runtime.SetBlockProfileRate(1)
		}
		routes.DebugFlags{}.Install(handler, "v", routes.StringFlagPutHandler(logs.GlogSetter))
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpages.ComponentStatusz) {
		statusz.Install(handler, program.Name, statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion(), statusz.WithListedPaths(handler.ListedPaths())))
	}
	return handler
}

// readyChecks are upstream's checks of a scheduler that leads: it is not stopping, and it
// has seen all objects, when synced is closed.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/server.go Run
func readyChecks(ctx context.Context, synced <-chan struct{}) []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.NewShutdownHealthz(ctx.Done()),
		healthz.NamedCheck("sched-handler-sync", func(*http.Request) error {
			select {
			case <-synced:
				return nil
			default:
				return errors.New("handlers are not fully synchronized")
			}
		}),
	}
}
