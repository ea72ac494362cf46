package loadbalancercontrol

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// deputy is the controller on a server that is not elected. From the moment when the
// elected server seems to be gone until another one is elected, it removes addresses of
// silent nodes. It never adds any, so several deputies do not undo each other's writes.
type deputy struct {
	api      kubernetes.Interface
	log      *logrus.Entry
	owner    func(netip.Addr) (string, bool)
	overdue  func(ctx context.Context) (bool, error)
	liveness *liveness
	synced   []cache.DoneChecker
	// changes receives when there may be the first Service for the controller, or none.
	changes loop.Changes

	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
}

// Follow asks the nodes as Lead does, and stands in for an elected server that is gone.
func (c *Controller) Follow(ctx context.Context) error {
	ctx, factory, end, err := c.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	api, err := kubernetes.NewForConfig(c.cfg.Client(ctx))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	d := newDeputy(c.cfg, c.liveness, api, factory, c.log)
	factory.StartWithContext(ctx)
	d.run(ctx)
	return nil
}

func newDeputy(cfg Config, liveness *liveness, api kubernetes.Interface, factory informers.SharedInformerFactory, log *logrus.Entry) *deputy {
	services, nodes := factory.Core().V1().Services(), factory.Core().V1().Nodes()
	d := &deputy{
		api: api, log: log, owner: cfg.Owner, overdue: cfg.Overdue, liveness: liveness,
		synced:   []cache.DoneChecker{services.Informer().HasSyncedChecker(), nodes.Informer().HasSyncedChecker()},
		changes:  loop.NewChanges(),
		services: services.Lister(), nodes: nodes.Lister(),
	}
	// Adding a handler fails only on an informer that has stopped.
	_, _ = services.Informer().AddEventHandler(objectcache.Handler(d.changes, isOursOrMarked, nil))
	return d
}

// run asks the nodes, as long as there is a Service for the controller, until ctx ends.
func (d *deputy) run(ctx context.Context) {
	if !cache.WaitFor(ctx, "", d.synced...) {
		return
	}
	d.changes.Notify()
	defer d.liveness.pause()
	faults := loop.Faults{Log: d.log}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.liveness.tick:
			nodes, _ := d.nodes.List(labels.Everything()) // listing a cache does not fail
			d.liveness.ask(ctx, nodes)
			// A conflict only means that the cache is behind.
			if err := d.standIn(ctx, nodes); ctx.Err() == nil && !apierrors.IsConflict(err) {
				faults.Tell(err)
			}
		case <-d.changes:
			services, _ := d.services.List(labels.Everything())
			d.liveness.need(slices.ContainsFunc(services, isServed))
		}
	}
}

// standIn removes the addresses of silent nodes if the elected server seems to be gone.
func (d *deputy) standIn(ctx context.Context, nodes []*corev1.Node) error {
	silent, alive := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, object := range nodes {
		of := alive
		if !d.liveness.answers(object.Name) {
			of = silent
		}
		node := newNode(object, true, d.owner)
		for _, address := range slices.Concat(node.internal, node.external) {
			of[address] = true
		}
	}
	if len(silent) == 0 {
		return nil
	}
	services, _ := d.services.List(labels.Everything())
	asked := false
	for _, service := range services {
		if !isServed(service) || !servicelb.IsMarked(service) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(service.Status.LoadBalancer.Ingress), func(one corev1.LoadBalancerIngress) bool {
			address, err := netip.ParseAddr(one.IP)
			// The nodes move addresses of pools themselves. Several nodes can have the same
			// external address: it stays if one of them answers.
			isNodes := one.IPMode != nil && *one.IPMode == corev1.LoadBalancerIPModeProxy
			return err == nil && isNodes && silent[address] && !alive[address]
		})
		if len(left) == len(service.Status.LoadBalancer.Ingress) {
			continue
		}
		if !asked {
			overdue, err := d.overdue(ctx)
			if err != nil {
				// This server itself is probably cut off. If it is elected later, it must not begin
				// with what it took for silent nodes.
				d.liveness.forget()
			}
			if err != nil || !overdue {
				return nil
			}
		}
		asked = true
		if err := d.write(ctx, service, left); err != nil {
			return err
		}
	}
	return nil
}

// write leaves these addresses to a Service.
func (d *deputy) write(ctx context.Context, service *corev1.Service, left []corev1.LoadBalancerIngress) error {
	conditions := slices.Clone(service.Status.Conditions)
	if len(left) == 0 {
		meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: servicelb.Condition, Status: metav1.ConditionFalse, Reason: reasonUnavailable, ObservedGeneration: service.Generation,
			Message: "There are no available nodes for LoadBalancer: the nodes that it had do not answer",
		})
	}
	if err := patch(ctx, d.api, service, left, conditions); err != nil {
		return err
	}
	d.log.Infof("The elected server is gone, and nodes do not answer. Service %s had the addresses [%s], and now has [%s]",
		nameOf(service), addresses(service.Status.LoadBalancer.Ingress), addresses(left))
	return nil
}

// isServed tells whether the controller gives a Service addresses.
func isServed(service *corev1.Service) bool {
	return servicelb.IsOurs(service) && service.DeletionTimestamp == nil
}
