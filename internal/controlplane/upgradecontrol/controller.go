package upgradecontrol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/release"
)

const (
	// soon is when the controller looks again at nodes that are being drained, and after a
	// first failure. later is when it looks at Plans for which only time passes.
	soon  = 2 * time.Second
	later = 20 * time.Second
)

// ControllerConfig is what a Controller needs.
type ControllerConfig struct {
	// Client calls as upgrades.ControllerUser, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers provide nodes and EndpointSlices.
	Informers objectcache.Source
	// Plans is the one of this process.
	Plans *Plans
	// Node is the node of this server, or "".
	Node string
	// HTTP asks other servers for their version.
	HTTP *http.Client
}

// Controller carries Plans out. It implements the election package's Loops.
type Controller struct {
	cfg     ControllerConfig
	log     *logrus.Entry
	clients func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error) // another one in tests
}

// NewController makes the controller.
func NewController(cfg ControllerConfig) *Controller {
	return &Controller{cfg: cfg, log: logrus.WithField("component", "upgrade"), clients: election.Clients}
}

// Lead implements the election package's Loops.
func (c *Controller) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api, custom, err := c.clients(c.cfg.Client(ctx))
	if err != nil {
		return err
	}
	factory, err := c.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	t := newTerm(c.cfg, c.log, api, custom, events.NewRecorder(ctx, api, "kedge-upgrade", ""))
	nodes, endpoints := factory.Core().V1().Nodes(), factory.Discovery().V1().EndpointSlices()
	registration, err := nodes.Informer().AddEventHandler(objectcache.Handler(t.changes, nil, isSame))
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	t.nodes = nodes.Lister()
	known, lister := endpoints.Informer().HasSyncedChecker(), endpoints.Lister()
	t.servers = func() []string {
		slice, err := lister.EndpointSlices(metav1.NamespaceDefault).Get("kubernetes")
		if err != nil {
			return nil
		}
		return servers.Addresses(slice, "")
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker(), known) {
		return nil
	}
	ready()
	t.run(ctx)
	cancel()
	t.resolver.running.Wait()
	return nil
}

// term is the controller while this server leads.
type term struct {
	ControllerConfig
	log    *logrus.Entry
	api    kubernetes.Interface
	custom dynamic.Interface
	events record.EventRecorder
	nodes  corelisters.NodeLister
	// servers returns HOST:PORT of all servers with an API server.
	servers  func() []string
	resolver *resolver
	// ask is resolver.ask, except in tests.
	ask func(context.Context, question) answer
	// changes receives when a node has changed, or when the resolver has an answer.
	changes loop.Changes
	// written are the Plans that were written last, until the cache has them. They also decide what
	// other Plans may do.
	written objectcache.Written[*upgrades.Plan]
	now     func() time.Time
	newID   func() string
}

// newTerm makes a term without what comes from informers.
func newTerm(cfg ControllerConfig, log *logrus.Entry, api kubernetes.Interface, custom dynamic.Interface, recorder record.EventRecorder) *term {
	t := &term{
		ControllerConfig: cfg, log: log, api: api, custom: custom, events: recorder,
		changes: loop.NewChanges(), now: time.Now, newID: func() string { return string(uuid.NewUUID()) },
	}
	t.resolver = &resolver{store: cfg.Plans.cfg.Store, keyFile: release.KeyFile, answered: t.changes.Notify, tasks: map[string]*task{}}
	t.ask = t.resolver.ask
	return t
}

// run carries Plans out until ctx ends.
func (t *term) run(ctx context.Context) {
	// step and cordon have left out what passes by itself.
	loop.Loop{Log: t.log, First: soon, Last: later, Wake: t.changes}.Run(ctx, func(ctx context.Context) (next loop.Next, err error) {
		plans, renewed := t.Plans.newest.Get()
		if next.Changed = renewed; plans != nil {
			next.After, err = t.sync(ctx, plans)
		}
		return next, err
	})
}

// sync brings each Plan one step on. It returns when it must be called again, even if nothing
// changes, or 0.
func (t *term) sync(ctx context.Context, plans []*upgrades.Plan) (again time.Duration, err error) {
	defer t.resolver.forget()
	plans = t.latest(plans)
	list, err := t.nodes.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	all := nodesOf(list)
	behind, err := t.cordon(ctx, plans, all)
	if behind {
		again = soon
	}
	faults := []error{err}
	for i, plan := range plans {
		if plan.Status.ObservedGeneration == plan.Generation && ended(&plan.Status) {
			continue
		}
		if again == 0 {
			again = later
		}
		if len(in(&plan.Status, upgrades.NodeDraining)) > 0 {
			again = soon
		}
		next, err := t.step(ctx, plan, plans, all)
		plans[i], faults = next, append(faults, err)
	}
	return again, errors.Join(faults...)
}

// latest returns Plans as they were written last, as long as the cache is behind.
func (t *term) latest(plans []*upgrades.Plan) []*upgrades.Plan {
	t.written.Turn()
	all := slices.Clone(plans)
	for i, plan := range plans {
		if last, is := t.written.Get(plan); is {
			all[i] = last
		}
	}
	return all
}

// step brings a Plan one step on, and returns it as it is then. Its status decides what happens
// in the cluster, and is written first. If this server ends in between, the next one that leads
// does it.
func (t *term) step(ctx context.Context, plan *upgrades.Plan, plans []*upgrades.Plan, all []*node) (*upgrades.Plan, error) {
	drains, err := t.drain(ctx, plan)
	if err != nil {
		return plan, fmt.Errorf("plan %s: %w", plan.Name, err)
	}
	w := &world{
		plan: plan, all: all, bares: baresOf(ctx, t.HTTP, t.servers(), all), own: t.Node, drained: drains, now: t.now(), newID: t.newID,
		others: slices.DeleteFunc(slices.Clone(plans), func(other *upgrades.Plan) bool { return other == plan }),
		ask:    func(q question) answer { return t.ask(ctx, q) },
	}
	next := w.next()
	if ctx.Err() != nil || equality.Semantic.DeepEqual(next, plan.Status) {
		return plan, nil
	}
	wrote, err := t.write(ctx, plan, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return plan, nil // the cache brings the newer version soon
	}
	if err != nil {
		return plan, fmt.Errorf("write status of Plan %s: %w", plan.Name, err)
	}
	t.written.Set(plan, wrote)
	t.tell(plan, &next)
	return wrote, nil
}

// drain evicts pods of the nodes of a Plan that are being drained. Nodes are cordoned before.
func (t *term) drain(ctx context.Context, plan *upgrades.Plan) (map[string]drained, error) {
	results := map[string]drained{}
	for _, n := range in(&plan.Status, upgrades.NodeDraining) {
		node, err := t.nodes.Get(n.Name)
		if err != nil || !node.Spec.Unschedulable {
			continue // it is gone, or the next step drains it
		}
		results[n.Name] = drained{}
		if plan.Spec.Drain == nil {
			continue
		}
		if results[n.Name], err = drainOnce(ctx, t.api, n.Name, plan.Spec.Drain); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// cordon cordons the nodes that Plans have begun with, as far as they say so, and uncordons the
// others that a Plan has cordoned. behind says that a Node is newer than in the cache. Its newer
// version may be the same to a Plan, so nothing but the time brings the next attempt.
func (t *term) cordon(ctx context.Context, plans []*upgrades.Plan, all []*node) (behind bool, err error) {
	wanted := map[string]string{}
	for _, plan := range plans {
		if plan.Spec.Cordon || plan.Spec.Drain != nil {
			for _, n := range underWay(&plan.Status) {
				wanted[n.Name] = plan.Name
			}
		}
	}
	var faults []error
	for _, n := range all {
		var err error
		switch plan := wanted[n.name]; {
		case plan != "" && !n.unschedulable:
			err = cordon(ctx, t.api, n, plan)
		case plan == "" && n.cordonedBy != "":
			err = uncordon(ctx, t.api, n)
		}
		switch {
		case apierrors.IsConflict(err):
			behind = true
		case err != nil && !apierrors.IsNotFound(err):
			faults = append(faults, err)
		}
	}
	return behind, errors.Join(faults...)
}

// write writes the status of a Plan, and returns the Plan as it is then. It fails with a conflict
// if the Plan is newer.
func (t *term) write(ctx context.Context, plan *upgrades.Plan, status upgrades.PlanStatus) (*upgrades.Plan, error) {
	wrote := *plan
	wrote.Status = status
	object, err := encode(&wrote)
	if err != nil {
		return nil, err
	}
	answer, err := t.custom.Resource(upgrades.Plans).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	wrote.ResourceVersion = answer.GetResourceVersion()
	return &wrote, nil
}

// tell writes Events about what is new in a status.
func (t *term) tell(plan *upgrades.Plan, next *upgrades.PlanStatus) {
	object := &corev1.ObjectReference{APIVersion: upgrades.Plans.GroupVersion().String(), Kind: "Plan", Name: plan.Name, UID: plan.UID}
	say := func(kind, reason, format string, args ...any) {
		text := events.Message(fmt.Sprintf(format, args...))
		t.log.Infof("Plan %s: %s", plan.Name, text)
		t.events.Event(object, kind, reason, text)
	}
	before := map[string]upgrades.NodeState{}
	for _, n := range plan.Status.Nodes {
		before[n.Name] = n.State
	}
	for _, n := range next.Nodes {
		if n.State == before[n.Name] {
			continue
		}
		switch n.State {
		case upgrades.NodeOrdered:
			say(corev1.EventTypeNormal, "NodeOrdered", "Node %s is told to run %s", n.Name, next.Version)
		case upgrades.NodeUpgraded:
			if n.Order != "" {
				say(corev1.EventTypeNormal, "NodeUpgraded", "Node %s runs %s", n.Name, next.Version)
			}
		case upgrades.NodeFailed:
			say(corev1.EventTypeWarning, "NodeFailed", "Node %s: %s", n.Name, n.Message)
		}
	}
	if next.Phase == plan.Status.Phase {
		return
	}
	switch next.Phase {
	case upgrades.Complete:
		say(corev1.EventTypeNormal, "Complete", "%s", next.Message)
	case upgrades.Stopped:
		say(corev1.EventTypeWarning, "Stopped", "%s", next.Message)
	}
}
