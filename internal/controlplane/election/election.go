// Package election decides which of a cluster's servers runs what only one may
// run: the controllers and the scheduler. The servers elect by a Lease, with
// client-go's elector. A server that loses the Lease ends only these loops. Its
// API server, container runtime and kubelet keep running, and the loops begin
// again when the server wins the Lease again. The packages controllers and
// scheduler run their loops with it. The server package makes an Election if
// several servers can share the datastore.
package election

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// This Lease is also named in /manifests/rbac.yaml.
const (
	leaseNamespace = "kube-system"
	leaseName      = "kedge"
)

// These times decide how soon a dead server is replaced, and that a server that
// is cut off stops in time.
//
// Followers look every 1 to 2.2 retryPeriods (client-go's jitter), and count from
// the moment when they saw the last renewal. So a follower takes over at most 2 ×
// 2.2 s + leaseDuration after the last renewal, which is under 20 s. A leader
// that cannot renew gives up at most retryPeriod + renewDeadline after the last
// renewal. That is 3 s before another server may take over, and the loops have to
// end in these 3 s.
const (
	leaseDuration = 14 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = time.Second
	// overdue is how long the elected server may not have renewed the Lease so that it
	// still counts as alive: some slow writes must not matter. overduePatience limits the
	// question whether it has.
	overdue         = 5 * time.Second
	overduePatience = time.Second
	// releasePatience limits how long releasing the Lease at the end may take.
	releasePatience = 2 * time.Second
)

// Config is what an Election needs.
type Config struct {
	// Client may get, update, list and watch the Lease, and create Leases.
	Client *rest.Config
	// Identity is unique to this server and stays the same after a restart, so
	// that a restarted server need not wait until its own Lease expires.
	Identity string
	// OnLeader is called with the identity of the server that is elected, when that changes. It may be nil, and must not
	// call the Election.
	OnLeader func(identity string)
}

// Election is the component that takes part in the election as long as it runs.
// The components that it elects for must depend on it, so that they end first.
// Then it can release the Lease at once.
type Election struct {
	identity string
	log      *logrus.Entry
	config   *rest.Config
	// locks holds the Lease, and watches follows it.
	locks, watches kubernetes.Interface
	onLeader       func(identity string)

	mu sync.Mutex
	// changed is closed and replaced when term or leader changes.
	changed chan struct{}
	term    *term  // nil while this server does not lead
	leader  string // the server last seen to lead, or empty
	// renewed is the elected server's last renewal, by its clock, and seen is when this
	// server saw that.
	renewed metav1.MicroTime
	seen    time.Time
	// again makes this server try to win the Lease at once instead of after a
	// pause.
	again context.CancelFunc
}

// term is the time from winning the Lease to losing it.
type term struct {
	ctx   context.Context
	loops sync.WaitGroup
}

// New makes an Election, which implements component.Component.
func New(c Config) *Election {
	return &Election{
		identity: c.Identity,
		log:      logrus.WithField("component", "election"),
		config:   c.Client,
		onLeader: c.OnLeader,
		changed:  make(chan struct{}),
	}
}

// Name implements component.Component.
func (*Election) Name() string { return "election" }

// Run implements component.Component. It is ready at once.
func (e *Election) Run(ctx context.Context, ready func()) error {
	if e.locks == nil {
		timely := rest.CopyConfig(e.config)
		// Upstream sets the same timeout
		// (client-go/tools/leaderelection/resourcelock, NewFromKubeconfig), so
		// that after a request that hangs there is time for another attempt.
		//upstream:relies-on k8s.io/client-go/tools/leaderelection/resourcelock/interface.go NewFromKubeconfig
		timely.Timeout = renewDeadline / 2
		var err error
		if e.locks, err = kubernetes.NewForConfig(timely); err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		if e.watches, err = kubernetes.NewForConfig(e.config); err != nil {
			return fmt.Errorf("make client: %w", err)
		}
	}
	var watching sync.WaitGroup
	watching.Go(func() { e.watch(ctx) })
	defer watching.Wait()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: leaseNamespace, Name: leaseName},
		Client:     e.locks.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
	}
	// ReleaseOnCancel is not used: client-go would first release the Lease, for
	// which it waits as long as for a renewal, and only then report the loss
	// (leaderelection.go, Run and renew). Loops could then still run when another
	// server's loops begin.
	//upstream:relies-on k8s.io/client-go/tools/leaderelection/leaderelection.go LeaderElector.Run LeaderElector.renew LeaderElector.release LeaderElector.tryRelease
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          leaseName,
		Lock:          lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.begin,
			OnStoppedLeading: func() {},
			OnNewLeader:      e.follow,
		},
	})
	if err != nil {
		return fmt.Errorf("make elector: %w", err)
	}
	ready()
	for ctx.Err() == nil {
		e.stand(ctx, elector)
	}
	e.release(context.WithoutCancel(ctx), lock)
	return nil
}

// Leader returns the name in the identity NAME_ADDRESS of the server that is elected. The error
// is a NotFound if there was never an election, because the cluster has one server.
func Leader(ctx context.Context, api kubernetes.Interface) (string, error) {
	lease, err := api.CoordinationV1().Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("ask who leads: %w", err)
	}
	identity := ptr.Deref(lease.Spec.HolderIdentity, "")
	return identity[:max(strings.LastIndexByte(identity, '_'), 0)], nil
}

// stand takes part in the election until the Lease was won and lost, or until
// again is called. The elector remembers between calls since when another server
// leads.
func (e *Election) stand(ctx context.Context, elector *leaderelection.LeaderElector) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.change(func() { e.again = cancel })
	elector.Run(ctx)
	e.end(ctx)
}

// begin begins a term that ends with ctx. client-go calls it in a goroutine, so
// the Lease may already be lost again. In that case ctx has ended.
func (e *Election) begin(ctx context.Context) {
	e.change(func() {
		if ctx.Err() != nil {
			return
		}
		e.log.Info("This server runs the cluster's controllers and scheduler")
		e.term = &term{ctx: ctx}
		e.leadsLocked(e.identity)
	})
}

// end waits for the loops of a term that has ended.
func (e *Election) end(ctx context.Context) {
	var ended *term
	e.change(func() { ended, e.term, e.again = e.term, nil, nil })
	if ended == nil {
		return
	}
	if ctx.Err() == nil {
		e.log.Warnf("Lost the Lease %s/%s, because it could not be renewed for %s. The controllers and the scheduler stop on this server until it wins the Lease again. "+
			"A slow or stalled datastore is the usual cause", leaseNamespace, leaseName, renewDeadline)
	}
	ended.loops.Wait()
}

// follow notes which server leads.
func (e *Election) follow(leader string) {
	if leader == "" || leader == e.identity {
		return
	}
	e.change(func() {
		if e.term == nil && e.leader != leader {
			e.log.Infof("Server %s runs the cluster's controllers and scheduler", leader)
		}
		e.leadsLocked(leader)
	})
}

// leadsLocked takes in which server is elected.
func (e *Election) leadsLocked(identity string) {
	if e.leader != identity && e.onLeader != nil {
		e.onLeader(identity)
	}
	e.leader = identity
}

// change makes a change and wakes the goroutines that wait for one.
func (e *Election) change(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
	close(e.changed)
	e.changed = make(chan struct{})
}

// watch makes this server try at once when another server releases the Lease.
// client-go alone looks only from time to time.
func (e *Election) watch(ctx context.Context) {
	informer := coordinationinformers.NewFilteredLeaseInformer(e.watches, leaseNamespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + leaseName
	})
	// AddEventHandler fails only on an informer that has stopped.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if lease, ok := object.(*coordinationv1.Lease); ok {
				e.see(lease)
			}
		},
		UpdateFunc: func(_, object any) {
			lease, ok := object.(*coordinationv1.Lease)
			if !ok || e.see(lease) {
				return
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.term == nil && e.again != nil {
				e.again()
			}
		},
	})
	informer.RunWithContext(ctx)
}

// see notes when the Lease was renewed. It tells whether a server holds the Lease.
func (e *Election) see(lease *coordinationv1.Lease) (held bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if renewed := ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}); !renewed.Equal(&e.renewed) {
		e.renewed, e.seen = renewed, time.Now()
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "") != ""
}

// Overdue tells whether another server has the Lease and has not renewed it for 5 s, so that
// it seems to be gone. It fails if the API does not answer.
func (e *Election) Overdue(ctx context.Context) (bool, error) {
	late := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.term == nil && !e.seen.IsZero() && time.Since(e.seen) >= overdue
	}
	if !late() {
		return false, nil
	}
	// If this server was cut off, its watch may be behind.
	ctx, cancel := context.WithTimeout(ctx, overduePatience)
	defer cancel()
	lease, err := e.watches.CoordinationV1().Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read Lease %s/%s: %w", leaseNamespace, leaseName, err)
	}
	return e.see(lease) && late(), nil
}

// release releases the Lease if this server holds it.
func (e *Election) release(ctx context.Context, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	// A renewal that was under way when ctx ended may still be stored in between.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != e.identity {
			return err
		}
		now := metav1.Now()
		return lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions:    record.LeaderTransitions,
			LeaseDurationSeconds: 1,
			RenewTime:            now,
			AcquireTime:          now,
		})
	})
	if err != nil {
		e.log.Debugf("Cannot release the Lease %s/%s: %v", leaseNamespace, leaseName, err)
	}
}
