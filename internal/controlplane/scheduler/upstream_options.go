// Follows k8s.io/kubernetes v1.37.2, cmd/kube-scheduler/app/options/options.go.
// Follows k8s.io/kubernetes v1.37.2, pkg/scheduler/scheduler.go.

package scheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// setComponentConfig reads the configuration file that the user's arguments name,
// or else applies the deprecated arguments, as upstream's Options.ApplyTo does.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/options/options.go Options.ApplyTo Options.ApplyDeprecated
func setComponentConfig(o *options.Options) (err error) {
	if o.ConfigFile == "" {
		o.ApplyDeprecated()
		return nil
	}
	o.ComponentConfig, err = options.LoadConfigFromFile(klog.Background(), o.ConfigFile)
	if err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	return nil
}

// build makes upstream's configuration of the options, as upstream's Options.Config and
// ApplyTo do. Those need a kubeconfig. In a pod they find the outer cluster's. There is no
// SecureServing, because kedge serves the scheduler's port itself.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-scheduler/app/options/options.go Options.Config
func (s *Scheduler) build(ctx context.Context) (*schedulerconfig.Config, error) {
	if faults := s.options.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("check arguments: %w", errors.Join(faults...))
	}
	config := s.api.ClientUntil(ctx, user.KubeScheduler)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of scheduler: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of scheduler: %w", err)
	}
	shared, err := s.api.View(ctx, objectcache.Options{Only: objectcache.Select(hasNotEnded)})
	if err != nil {
		return nil, err
	}
	return &schedulerconfig.Config{
		ComponentConfig:                   *s.options.ComponentConfig,
		Client:                            client,
		KubeConfig:                        config,
		InformerFactory:                   shared,
		DynInformerFactory:                dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamicClient, 0, corev1.NamespaceAll, nil),
		EventBroadcaster:                  events.NewEventBroadcasterAdapterWithContext(ctx, client),
		PodMaxInUnschedulablePodsDuration: s.options.Deprecated.PodMaxInUnschedulablePodsDuration,
		ComponentGlobalsRegistry:          s.options.ComponentGlobalsRegistry,
	}, nil
}

// hasNotEnded selects the pods that the scheduler knows.
//
//upstream:follows k8s.io/kubernetes/pkg/scheduler/scheduler.go newPodInformer
func hasNotEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
