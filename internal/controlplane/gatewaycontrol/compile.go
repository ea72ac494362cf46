package gatewaycontrol

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/bounds"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// compiled is what the objects of the cluster mean.
type compiled struct {
	gateways  *compile.Result
	ingresses *ingress.Result
	// owners knows which namespace has which host of the shared front. It is nil if hosts
	// belong to no namespace.
	owners *hosts.Owners
	// wrongHosts are the claims of administrators whose host is no host name.
	wrongHosts []hosts.Claim
	// fronts are those of both. They also answer challenges.
	fronts []front.Front
	state  *routing.State
	// asks says that an object asks kedge to get certificates.
	asks bool
	// pods are those that endpoints name.
	pods map[types.NamespacedName]bool
	// secret returns a Secret as it is now, or nil if there is none.
	secret func(namespace, name string) *corev1.Secret
	// taken are fronts whose names Services of others have.
	taken []front.Front
	// parts are what nodes get of the state.
	parts *parts
	// refusals are what nodes would not accept.
	refusals []bounds.Refusal
}

// compile works out what the objects mean. It starts to watch what it finds to be needed, and
// fails only if that fails.
func (s *sources) compile(ctx context.Context) (*compiled, error) {
	for {
		now := s.once()
		more, err := s.adjust(ctx, now)
		if err != nil || !more || ctx.Err() != nil {
			return now, err
		}
	}
}

// once works out what the objects mean that are watched.
func (s *sources) once() *compiled {
	s.matters.begin()
	begun := time.Now()
	lookup := s.lookup()
	gateways, ingresses := compile.Begin(s.gatewayInput(lookup)), s.beginIngresses(lookup)
	owners, wrong := s.owners(slices.Concat(gateways.Claims(), ingresses.Claims()), lookup)
	now := &compiled{gateways: gateways.Finish(owners), ingresses: ingresses.Finish(owners), owners: owners, wrongHosts: wrong}
	now.asks, now.secret = now.asksForCertificates(), lookup.secret
	now.pods = lookup.endpoints.Pods
	s.certificates.Sweep()
	routes := both(now.gateways.State.Routes, now.ingresses.State.Routes)
	now.fronts = front.Partition(front.Merge(now.gateways.Fronts, now.ingresses.Fronts), routes, owners)
	certificates := both(now.gateways.State.Certificates, now.ingresses.State.Certificates)
	now.answerChallenges(certificates)
	now.parts = s.newParts(now.fronts, lookup)
	now.yield(lookup.service)
	sockets, of := front.Sockets(now.fronts, func(name types.NamespacedName) *corev1.Service {
		return lookup.service(name.Namespace, name.Name)
	}, s.cfg.Sockets)
	wanted := routing.State{
		Sockets:      sockets,
		Routes:       routes,
		Backends:     both(now.gateways.State.Backends, now.ingresses.State.Backends),
		Certificates: certificates,
	}
	before := s.before()
	now.adopt(wanted, before.state)
	now.parts.divide(now.state, of, before.parts)
	s.metrics.observe(now, time.Since(begun))
	if s.matters.end(now.names()) {
		s.changes.Notify()
	}
	return now
}

// adopt makes the state that nodes get of what the objects mean, and says in statuses what
// nodes do not get of it. What is equal to what nodes have stays the same pointer.
func (c *compiled) adopt(wanted routing.State, before *routing.State) {
	whole := before.With(routing.Update{Whole: true, State: wanted})
	made, refusals := bounds.Sound(whole, before, c.owners.Owner)
	c.state, c.refusals = before.With(routing.Update{Whole: true, State: *made}), refusals
	why := map[string]string{}
	for _, r := range c.refusals {
		if route := whole.Routes[r.Name]; r.Kind == "route" && route != nil {
			why[route.Name] = r.Why
		}
	}
	if len(why) > 0 {
		c.refuseRoutes(why)
	}
}

// both joins two maps. If both have a name, the value of a stays.
func both[V any](a, b map[string]*V) map[string]*V {
	all := maps.Clone(b)
	if all == nil {
		return a
	}
	maps.Copy(all, a)
	return all
}

// names returns the objects that a result depends on.
func (c *compiled) names() map[object]bool {
	names := map[object]bool{}
	for kind, lists := range map[string][]map[types.NamespacedName]bool{
		serviceKind:   {c.gateways.Services, c.ingresses.Services},
		secretKind:    {c.gateways.Secrets, c.ingresses.Secrets},
		configMapKind: {c.gateways.ConfigMaps},
		podKind:       {c.pods},
	} {
		for _, list := range lists {
			for name := range list {
				names[object{kind, name}] = true
			}
		}
	}
	for i := range c.fronts {
		names[object{serviceKind, c.fronts[i].Name}] = true
	}
	if c.asks {
		names[object{secretKind, acme.ChallengesName}] = true
	}
	if c.owners != nil {
		names[object{secretKind, hostsName}] = true
	}
	return names
}

// lookup finds single objects for one run.
type lookup struct {
	namespace func(name string) *corev1.Namespace
	service   func(namespace, name string) *corev1.Service
	secret    func(namespace, name string) *corev1.Secret
	configMap func(namespace, name string) *corev1.ConfigMap
	slices    func(namespace, service string) []*discoveryv1.EndpointSlice
	// endpoints is one for both compilers, so that it looks at each Service once.
	endpoints *endpoints.Finder
	offered   func(namespace string, labels map[string]string) bool
}

// lookup returns functions that find nothing in stages that do not run.
func (s *sources) lookup() *lookup {
	finder := &endpoints.Finder{Rules: s.cfg.Backends}
	l := &lookup{
		endpoints: finder,
		namespace: func(string) *corev1.Namespace { return nil },
		service:   func(string, string) *corev1.Service { return nil },
		secret:    func(string, string) *corev1.Secret { return nil },
		configMap: func(string, string) *corev1.ConfigMap { return nil },
		slices:    func(string, string) []*discoveryv1.EndpointSlice { return nil },
		offered:   func(string, map[string]string) bool { return false },
	}
	// A lister fails only if there is no such object, and then returns nil.
	if s.objects != nil {
		secrets := s.secrets // the Controller calls the function, too
		l.namespace = func(name string) *corev1.Namespace {
			found, _ := s.namespaces.Get(name)
			return found
		}
		l.service = func(namespace, name string) *corev1.Service {
			found, _ := s.services.Services(namespace).Get(name)
			return found
		}
		l.secret = func(namespace, name string) *corev1.Secret {
			found, _ := secrets.Secrets(namespace).Get(name)
			return found
		}
		l.slices = s.slicesByService()
		finder.Pod = func(namespace, name string) *corev1.Pod {
			found, _ := s.pods.Pods(namespace).Get(name)
			return found
		}
		finder.Node = func(name string) *corev1.Node {
			found, _ := s.nodes.Get(name)
			return found
		}
		finder.Nodes = func() []*corev1.Node {
			all, _ := s.nodes.List(labels.Everything()) // listing a cache does not fail
			return all
		}
	}
	finder.Slices = l.slices
	if s.configs != nil {
		l.configMap = func(namespace, name string) *corev1.ConfigMap {
			found, _ := s.configMaps.ConfigMaps(namespace).Get(name)
			return found
		}
	}
	pools := s.pools()
	finder.Pool = loadbalancercontrol.PoolOf(pools)
	if pools != nil {
		offers := loadbalancercontrol.Offers(pools)
		l.offered = func(namespace string, of map[string]string) bool { return offers(of, l.labelsOf(namespace)) }
	}
	return l
}

// slicesByService returns a function that returns the EndpointSlices of a Service. At its
// first call it sorts those of the cluster: an index in the shared cache would stay there when
// the last Gateway has gone.
func (s *sources) slicesByService() func(namespace, service string) []*discoveryv1.EndpointSlice {
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

// gatewayInput returns the objects of the Gateway API.
func (s *sources) gatewayInput(l *lookup) *compile.Input {
	in := &compile.Input{
		Classes:  list[gwv1.GatewayClass](s.classes),
		Gateways: list[gwv1.Gateway](s.gateways),

		Namespace: l.namespace, Service: l.service, Secret: l.secret, ConfigMap: l.configMap, Slices: l.slices, Endpoints: l.endpoints.Of, Offered: l.offered,
		Certificate: s.certificates.Read, Ports: s.cfg.Ports,
	}
	if s.routes != nil {
		in.ListenerSets = list[gwv1.ListenerSet](s.kinds[listenerSetResource])
		in.HTTPRoutes = list[gwv1.HTTPRoute](s.kinds[httpRouteResource])
		in.GRPCRoutes = list[gwv1.GRPCRoute](s.kinds[grpcRouteResource])
		in.TLSRoutes = list[gwv1.TLSRoute](s.kinds[tlsRouteResource])
		in.TCPRoutes = list[gwv1.TCPRoute](s.kinds[tcpRouteResource])
		in.UDPRoutes = list[gwv1.UDPRoute](s.kinds[udpRouteResource])
		in.Grants = list[gwv1.ReferenceGrant](s.kinds[grantResource])
		in.Policies = list[gwv1.BackendTLSPolicy](s.kinds[policyResource])
	}
	return in
}

// beginIngresses begins to work out what the Ingresses mean.
func (s *sources) beginIngresses(l *lookup) *ingress.Run {
	// Listing a cache does not fail.
	all, _ := s.ingresses.List(labels.Everything())
	classes, _ := s.ingressClasses.List(labels.Everything())
	return ingress.Begin(&ingress.Input{
		Ingresses: all, Classes: classes, ServedClasses: s.cfg.IngressClasses,
		Service: l.service, Secret: l.secret, Endpoints: l.endpoints.Of, Certificate: s.certificates.Read,
	})
}
