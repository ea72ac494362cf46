package sources

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// addBase adds what is always watched.
func (s *Sources) addBase() error {
	s.classes = s.watch(s.base, kinds.Classes, kinds.Typed[gwv1.GatewayClass])
	s.gateways = s.watch(s.base, kinds.Gateways, kinds.Typed[gwv1.Gateway])
	networking := s.base.Networking().V1()
	s.ingresses, s.ingressClasses = networking.Ingresses().Lister(), networking.IngressClasses().Lister()
	return errors.Join(
		s.base.Handle(networking.Ingresses().Informer(), objectcache.Handler[*netv1.Ingress](s.cfg.Changes, nil, nil)),
		s.base.Handle(networking.IngressClasses().Informer(), objectcache.Handler[*netv1.IngressClass](s.cfg.Changes, nil, nil)),
	)
}

// watch adds a custom kind to a stage.
func (s *Sources) watch(stage *objectcache.Stage, kind schema.GroupVersionResource, convert cache.TransformFunc) cache.Store {
	return kinds.Watch(stage, s.cfg.Custom, kind, convert, s.cfg.Changes.Notify)
}

// addObjects adds what every Gateway and Ingress needs.
func (s *Sources) addObjects() error {
	core, discovery := s.objects.Core().V1(), s.objects.Discovery().V1()
	s.services, s.slices, s.pods = core.Services().Lister(), discovery.EndpointSlices().Lister(), core.Pods().Lister()
	s.secrets, s.namespaces, s.nodes = core.Secrets().Lister(), core.Namespaces().Lister(), core.Nodes().Lister()
	if s.cfg.Pools {
		s.pools = s.watch(s.objects, loadbalancercontrol.PoolResource, objectcache.WithoutManagedFields)
	}
	return errors.Join(
		s.objects.Handle(core.Services().Informer(), objectcache.Handler(s.cfg.Changes, func(service *corev1.Service) bool {
			return s.relevance.touch(Service, service.Namespace, service.Name)
		}, nil)),
		s.objects.Handle(discovery.EndpointSlices().Informer(), objectcache.Handler(s.cfg.Changes, func(slice *discoveryv1.EndpointSlice) bool {
			return s.relevance.touch(Service, slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
		}, nil)),
		// Pods change far more often than their addresses.
		s.objects.Handle(core.Pods().Informer(), objectcache.Handler(s.cfg.Changes, func(pod *corev1.Pod) bool {
			return s.relevance.touch(Pod, pod.Namespace, pod.Name)
		}, endpoints.SamePod)),
		s.objects.Handle(core.Secrets().Informer(), objectcache.Handler(s.cfg.Changes, func(secret *corev1.Secret) bool {
			return s.relevance.touch(Secret, secret.Namespace, secret.Name)
		}, nil)),
		s.objects.Handle(core.Namespaces().Informer(), objectcache.Handler(s.cfg.Changes, nil, func(before, now *corev1.Namespace) bool {
			return labels.Equals(before.Labels, now.Labels) && before.Annotations[gateways.HostsAnnotation] == now.Annotations[gateways.HostsAnnotation]
		})),
		// The kubelet writes its Node every few minutes.
		s.objects.Handle(core.Nodes().Informer(), objectcache.Handler(s.cfg.Changes, nil, func(before, now *corev1.Node) bool {
			return labels.Equals(before.Labels, now.Labels) && endpoints.SameNode(before, now)
		})),
	)
}

// addRoutes adds what only Gateways need.
func (s *Sources) addRoutes() error {
	s.kinds = map[schema.GroupVersionResource]cache.Store{}
	for kind, convert := range map[schema.GroupVersionResource]cache.TransformFunc{
		kinds.ListenerSets: kinds.Typed[gwv1.ListenerSet],
		kinds.HTTPRoutes:   kinds.Typed[gwv1.HTTPRoute],
		kinds.GRPCRoutes:   kinds.Typed[gwv1.GRPCRoute],
		kinds.TLSRoutes:    kinds.Typed[gwv1.TLSRoute],
		kinds.TCPRoutes:    kinds.Typed[gwv1.TCPRoute],
		kinds.UDPRoutes:    kinds.Typed[gwv1.UDPRoute],
		kinds.Grants:       kinds.Typed[gwv1.ReferenceGrant],
		kinds.Policies:     kinds.Typed[gwv1.BackendTLSPolicy],
	} {
		s.kinds[kind] = s.watch(s.routes, kind, convert)
	}
	return nil
}

// addConfigs adds ConfigMaps.
func (s *Sources) addConfigs() error {
	configMaps := s.configs.Core().V1().ConfigMaps()
	s.configMaps = configMaps.Lister()
	return s.configs.Handle(configMaps.Informer(), objectcache.Handler(s.cfg.Changes, func(config *corev1.ConfigMap) bool {
		return s.relevance.touch(ConfigMap, config.Namespace, config.Name)
	}, nil))
}
