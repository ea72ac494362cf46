// Follows k8s.io/kubernetes v1.36.3, cmd/kube-scheduler/app/server.go.

package scheduler

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/pkg/scheduler"
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

// followerHandler answers on the port of a scheduler that does not lead, as
// upstream's newEndpointsHandler does without the informers of one that leads.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/server.go newEndpointsHandler
func followerHandler() http.Handler {
	handler := mux.NewPathRecorderMux(program.Name)
	healthz.InstallHandler(handler)
	healthz.InstallLivezHandler(handler)
	healthz.InstallReadyzHandler(handler)
	handler.Handle("/metrics", legacyregistry.HandlerWithReset())
	slis.SLIMetricsWithReset{}.Install(handler)
	return handler
}
