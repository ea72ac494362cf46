package gatewaycontrol

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/services"
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
	t := &term{
		ControllerConfig: c.cfg, log: c.log, api: api, newIssuer: c.newIssuer,
		events:    sync.OnceValue(func() record.EventRecorder { return events.NewRecorder(ctx, api, "kedge-gateway", "") }),
		changes:   loop.NewChanges(),
		statuses:  statuses.Writer{Client: custom},
		ingresses: statuses.Ingresses{Client: api.NetworkingV1()},
	}
	t.faults.Recorder = t.events
	t.services, err = services.Start(ctx, services.Config{API: api, Informers: c.cfg.Informers, Owner: c.cfg.Owner, Changes: t.changes})
	if err != nil {
		return err
	}
	defer t.services.Stop()
	defer t.issuing.close()
	if ctx.Err() != nil {
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
	changes loop.Changes

	services  *services.Keeper
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
	var failures []error
	failed := func(err error) {
		// After a conflict, or if the object has gone, the cache brings the newer version soon.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			failures = append(failures, err)
		}
	}
	t.ingresses.Clear(ctx, newest.ingresses, t.services.Shared(), failed) // the addresses are those of a Service
	yielding, err := t.services.Sync(ctx, newest.fronts, newest.parts.serves, failed)
	if err != nil {
		return err
	}
	shared := t.services.Shared()
	t.faults.Tell(slices.Concat(newest.allFaults(), yielding, statuses.Unreachable(newest.ingresses, shared)))
	failed(newest.owners.WriteRecord(ctx, t.api.CoreV1(), newest.secret(hosts.RecordName.Namespace, hosts.RecordName.Name)))
	t.syncCertificates(ctx, newest)
	t.statuses.Write(ctx, newest.gateways, failed)
	t.ingresses.Write(ctx, newest.ingresses, shared, failed)
	return errors.Join(failures...)
}
