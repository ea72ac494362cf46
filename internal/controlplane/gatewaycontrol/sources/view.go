package sources

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// View is what one run reads. The settings of its parts are empty. The function Gateways.Secret
// may be called by everybody, also after the run.
type View struct {
	Gateways  *compile.Input
	Ingresses *ingress.Input
	// Endpoints is one for both, so that it looks at each Service once.
	Endpoints  *endpoints.Finder
	Nodes      []*corev1.Node
	Namespaces []*corev1.Namespace
	// Pools are the LoadBalancerPools. It is nil if kedge gives no addresses of pools.
	Pools []*unstructured.Unstructured
}

// Read begins a run, which Settle ends.
func (s *Sources) Read() *View {
	s.relevance.begin()
	v := &View{Pools: kinds.List[unstructured.Unstructured](s.pools)}
	// Listing a cache does not fail.
	v.Nodes, _ = s.nodes.List(labels.Everything())
	v.Namespaces, _ = s.namespaces.List(labels.Everything())
	ingresses, _ := s.ingresses.List(labels.Everything())
	ingressClasses, _ := s.ingressClasses.List(labels.Everything())
	secrets, slices := s.secrets, s.slicesByService()
	// A lister fails only if there is no such object, and then returns nil.
	service := func(namespace, name string) *corev1.Service {
		found, _ := s.services.Services(namespace).Get(name)
		return found
	}
	secret := func(namespace, name string) *corev1.Secret {
		found, _ := secrets.Secrets(namespace).Get(name)
		return found
	}
	v.Endpoints = &endpoints.Finder{
		Slices: slices,
		Pod: func(namespace, name string) *corev1.Pod {
			found, _ := s.pods.Pods(namespace).Get(name)
			return found
		},
		Node: func(name string) *corev1.Node {
			found, _ := s.nodes.Get(name)
			return found
		},
		Nodes: func() []*corev1.Node { return v.Nodes },
		Pool:  loadbalancercontrol.PoolOf(v.Pools),
	}
	offers := loadbalancercontrol.Offers(v.Pools)
	v.Gateways = &compile.Input{
		Classes:      kinds.List[gwv1.GatewayClass](s.classes),
		Gateways:     kinds.List[gwv1.Gateway](s.gateways),
		ListenerSets: kinds.List[gwv1.ListenerSet](s.kinds[kinds.ListenerSets]),
		HTTPRoutes:   kinds.List[gwv1.HTTPRoute](s.kinds[kinds.HTTPRoutes]),
		GRPCRoutes:   kinds.List[gwv1.GRPCRoute](s.kinds[kinds.GRPCRoutes]),
		TLSRoutes:    kinds.List[gwv1.TLSRoute](s.kinds[kinds.TLSRoutes]),
		TCPRoutes:    kinds.List[gwv1.TCPRoute](s.kinds[kinds.TCPRoutes]),
		UDPRoutes:    kinds.List[gwv1.UDPRoute](s.kinds[kinds.UDPRoutes]),
		Grants:       kinds.List[gwv1.ReferenceGrant](s.kinds[kinds.Grants]),
		Policies:     kinds.List[gwv1.BackendTLSPolicy](s.kinds[kinds.Policies]),

		Namespace: func(name string) *corev1.Namespace {
			found, _ := s.namespaces.Get(name)
			return found
		},
		Service: service,
		Secret:  secret,
		ConfigMap: func(namespace, name string) *corev1.ConfigMap {
			found, _ := s.configMaps.ConfigMaps(namespace).Get(name)
			return found
		},
		Slices: slices, Endpoints: v.Endpoints.Of, Certificate: s.certificates.Read,
		Offered: func(namespace string, of map[string]string) bool { return offers(of, v.LabelsOf(namespace)) },
	}
	v.Ingresses = &ingress.Input{
		Ingresses: ingresses, Classes: ingressClasses,
		Service: service, Secret: secret, Endpoints: v.Endpoints.Of, Certificate: s.certificates.Read,
	}
	return v
}

// Service returns a Service, or nil if there is none.
func (v *View) Service(name types.NamespacedName) *corev1.Service {
	return v.Gateways.Service(name.Namespace, name.Name)
}

// LabelsOf returns the labels of a namespace.
func (v *View) LabelsOf(namespace string) labels.Set {
	if found := v.Gateways.Namespace(namespace); found != nil {
		return found.Labels
	}
	return nil
}

// slicesByService returns a function that returns the EndpointSlices of a Service. At its
// first call it sorts those of the cluster: an index in the shared cache would stay there when
// the last Gateway has gone.
func (s *Sources) slicesByService() func(namespace, service string) []*discoveryv1.EndpointSlice {
	var sorted map[types.NamespacedName][]*discoveryv1.EndpointSlice
	return func(namespace, service string) []*discoveryv1.EndpointSlice {
		if sorted == nil {
			all, _ := s.slices.List(labels.Everything()) // listing a cache does not fail
			sorted = make(map[types.NamespacedName][]*discoveryv1.EndpointSlice, len(all))
			for _, slice := range all {
				of := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
				sorted[of] = append(sorted[of], slice)
			}
		}
		return sorted[types.NamespacedName{Namespace: namespace, Name: service}]
	}
}
