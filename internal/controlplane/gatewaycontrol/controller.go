package gatewaycontrol

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/statuses"
)

const controllerName = "gateway"

// ControllerConfig is what a Controller needs.
type ControllerConfig struct {
	// Client calls as system:kedge:gateway-controller, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers provide Services, EndpointSlices, nodes and pods.
	Informers objectcache.Source
	// Compiler is the one of this process.
	Compiler *Compiler
	// Owner returns the node that is registered with an address. A node chooses what its Node
	// says of itself.
	Owner func(netip.Addr) (node string, found bool)
	// ACME says how certificates are got. The Controller sets API and Events.
	ACME acme.Config
}

// Controller writes what follows from Gateways and Ingresses into the cluster. It implements
// the election package's Loops.
type Controller struct {
	cfg     ControllerConfig
	log     *logrus.Entry
	clients func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error) // another one in tests
	// newIssuer makes an acme.Manager, and something else in tests.
	newIssuer func(acme.Config) issuer
}

// NewController makes the controller.
func NewController(cfg ControllerConfig) *Controller {
	return &Controller{
		cfg: cfg, log: logrus.WithField("component", controllerName), clients: election.Clients,
		newIssuer: func(cfg acme.Config) issuer { return acme.New(cfg) },
	}
}

// Lead implements the election package's Loops. It is ready when it has read what it writes.
func (c *Controller) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api, custom, err := c.clients(c.cfg.Client(ctx))
	if err != nil {
		return err
	}
	base, err := objectcache.NewStage(ctx, c.cfg.Informers)
	if err != nil {
		return err
	}
	defer base.Stop()
	core, discovery := base.Core().V1(), base.Discovery().V1()
	t := &term{
		ControllerConfig: c.cfg, log: c.log, api: api, newIssuer: c.newIssuer,
		events:    sync.OnceValue(func() record.EventRecorder { return events.NewRecorder(ctx, api, "kedge-gateway", "") }),
		changes:   objectcache.NewChanges(),
		services:  core.Services().Lister(),
		slices:    discovery.EndpointSlices().Lister(),
		nodes:     core.Nodes().Lister(),
		statuses:  statuses.Writer{Client: custom},
		ingresses: statuses.Ingresses{Client: api.NetworkingV1()},
	}
	t.faults.Recorder = t.events
	defer func() { t.hostPorts.stop() }()
	defer t.issuing.close()
	err = errors.Join(
		base.Handle(core.Services().Informer(), objectcache.Handler(t.changes, front.IsFront, nil)),
		base.Handle(discovery.EndpointSlices().Informer(), objectcache.Handler[*discoveryv1.EndpointSlice](t.changes, front.IsSlice, nil)),
		base.Handle(core.Nodes().Informer(), objectcache.Handler[*corev1.Node](t.changes, nil, isSameNode)),
	)
	if err != nil {
		return err
	}
	if !base.Start() {
		return nil
	}
	ready()
	t.run(ctx)
	return nil
}

// term is the controller while this server leads.
type term struct {
	ControllerConfig
	log       *logrus.Entry
	api       kubernetes.Interface
	events    func() record.EventRecorder
	newIssuer func(acme.Config) issuer
	// changes receives when something else has changed than what the Compiler reads.
	changes objectcache.Changes

	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	nodes    corelisters.NodeLister
	// hostPorts is nil while there is no shared front.
	hostPorts *hostPorts

	faults    faults.Teller
	issuing   issuing
	statuses  statuses.Writer
	ingresses statuses.Ingresses
}

// run writes what differs until ctx ends.
func (t *term) run(ctx context.Context) {
	// sync has left out what passes by itself.
	loop.Loop{Log: t.log, Wake: t.changes}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		newest, renewed := t.Compiler.newest.Get()
		if newest == nil {
			return loop.Next{Changed: renewed}, nil
		}
		return loop.Next{Changed: renewed}, t.sync(ctx, newest)
	})
}

// sync writes what differs. A failure about one object does not keep the others from being
// written.
func (t *term) sync(ctx context.Context, newest *compiled) error {
	if err := t.watchHostPorts(ctx, newest); err != nil {
		return err
	}
	var failures []error
	failed := func(err error) {
		// After a conflict, or if the object has gone, the cache brings the newer version soon.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			failures = append(failures, err)
		}
	}
	t.ingresses.Clear(ctx, newest.ingresses, t.sharedService(), failed) // the addresses are those of a Service
	t.syncServices(ctx, newest, failed)
	yielding := t.syncSlices(ctx, newest, failed)
	shared := t.sharedService()
	t.faults.Tell(slices.Concat(newest.allFaults(), yielding, statuses.Unreachable(newest.ingresses, shared)))
	failed(newest.owners.WriteRecord(ctx, t.api.CoreV1(), newest.secret(hosts.RecordName.Namespace, hosts.RecordName.Name)))
	t.syncCertificates(ctx, newest)
	t.statuses.Write(ctx, newest.gateways, failed)
	t.ingresses.Write(ctx, newest.ingresses, shared, failed)
	return errors.Join(failures...)
}

// sharedService returns the Service of the shared front, or nil.
func (t *term) sharedService() *corev1.Service {
	service, err := t.services.Services(front.Shared.Namespace).Get(front.Shared.Name)
	if err != nil || !front.IsFront(service) { // there is none
		return nil
	}
	return service
}
