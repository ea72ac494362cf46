package gatewaycontrol

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/bounds"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/sources"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/statuses"
)

// compiled is what the objects of the cluster mean.
type compiled struct {
	gateways  *compile.Result
	ingresses *ingress.Result
	// owners knows which namespace has which host of the shared front. It is nil if hosts
	// belong to no namespace.
	owners *hosts.Owners
	// fronts are those of both. They also answer challenges.
	fronts []front.Front
	state  *routing.State
	// asks says that an object asks kedge to get certificates.
	asks bool
	// pods are those that endpoints name.
	pods map[types.NamespacedName]bool
	// secret returns a Secret as it is now, or nil if there is none.
	secret func(namespace, name string) *corev1.Secret
	// faults are those that neither statuses nor the Result of Ingresses has.
	faults []faults.Fault
	// parts are what nodes get of the state.
	parts *parts
	// refusals are what nodes would not accept.
	refusals []bounds.Refusal
}

// compile works out what the objects mean. It watches what it finds to be needed, and fails only
// if that fails.
func (c *Compiler) compile(ctx context.Context, from *sources.Sources) (*compiled, error) {
	for {
		begun := time.Now()
		now := c.once(from.Read())
		c.metrics.observe(now, time.Since(begun))
		more, err := from.Settle(ctx, now.needs())
		if err != nil || !more || ctx.Err() != nil {
			return now, err
		}
	}
}

// once works out what the objects of a view mean.
func (c *Compiler) once(view *sources.View) *compiled {
	view.Endpoints.Rules, view.Gateways.Ports, view.Ingresses.ServedClasses = c.cfg.Backends, c.cfg.Ports, c.cfg.IngressClasses
	now := &compiled{secret: view.Gateways.Secret}
	gateways, ingresses := compile.Begin(view.Gateways), ingress.Begin(view.Ingresses)
	if !c.cfg.ShareHosts {
		given, wrong := hosts.Assigned(view.Namespaces)
		claims := slices.Concat(gateways.Claims(), ingresses.Claims(), given)
		now.owners = hosts.Decide(claims, hosts.RecordOf(now.secret(hosts.RecordName.Namespace, hosts.RecordName.Name)))
		now.noHosts(wrong)
	}
	now.gateways, now.ingresses = gateways.Finish(now.owners), ingresses.Finish(now.owners)
	now.pods = view.Endpoints.Pods
	routes := both(now.gateways.State.Routes, now.ingresses.State.Routes)
	certificates := both(now.gateways.State.Certificates, now.ingresses.State.Certificates)
	now.fronts = front.Partition(front.Merge(now.gateways.Fronts, now.ingresses.Fronts), routes, now.owners)
	if now.asks = now.asksForCertificates(); now.asks {
		now.answerChallenges(certificates)
	}
	now.yield(front.Taken(now.fronts, view.Service))
	sockets, of := front.Sockets(now.fronts, view.Service, c.cfg.Sockets)
	before := c.before()
	now.adopt(routing.State{
		Sockets:      sockets,
		Routes:       routes,
		Backends:     both(now.gateways.State.Backends, now.ingresses.State.Backends),
		Certificates: certificates,
	}, before.state)
	now.parts = newParts(now.fronts, view)
	now.parts.divide(now.state, of, before.parts)
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
		statuses.RefuseRoutes(c.gateways, why)
		c.ingresses.Refuse(why)
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

// needs returns what a result depends on.
func (c *compiled) needs() sources.Needs {
	fronts, secrets := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{acme.ChallengesName: c.asks, hosts.RecordName: c.owners != nil}
	for i := range c.fronts {
		fronts[c.fronts[i].Name] = true
	}
	return sources.Needs{
		Gateways: len(c.gateways.Gateways) > 0, Ingresses: len(c.ingresses.Served) > 0,
		Objects: sources.Names{
			sources.Service:   {c.gateways.Services, c.ingresses.Services, fronts},
			sources.Secret:    {c.gateways.Secrets, c.ingresses.Secrets, secrets},
			sources.ConfigMap: {c.gateways.ConfigMaps},
			sources.Pod:       {c.pods},
		},
	}
}
