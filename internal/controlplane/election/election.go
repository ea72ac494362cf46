// Package election decides which of a cluster's servers runs what only one may
// run, the controllers and the scheduler. Servers elect by a Lease, with
// client-go's elector. Losing it ends these loops and nothing else: the API
// server, the container runtime and the kubelet beside them run on, and the
// loops begin anew when it is won again. The packages controllers
// and scheduler run their loops by it; the server package makes one where the
// datastore has room for several servers.
package election

import (
	"context"
	"fmt"
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
)

// The Lease, which /manifests/rbac.yaml names too.
const (
	leaseNamespace = "kube-system"
	leaseName      = "kedge"
)

// How a server that died is found out, and one that is cut off stops in time.
//
// Followers look every 1 to 2.2 retryPeriods (client-go's jitter): the last
// renewal counts from when they saw it, so that they take over at most 2 × 2.2 s
// + leaseDuration after it, which is under 20 s. Who cannot renew gives up at
// most retryPeriod + renewDeadline after the last renewal, 3 s before anybody
// may take over, which the loops have to end in.
const (
	leaseDuration = 14 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = time.Second
	// releasePatience is for giving the Lease back at the end.
	releasePatience = 2 * time.Second
)

// Config is what an Election needs.
type Config struct {
	// Client gets, updates, lists and watches the Lease, and creates Leases.
	Client *rest.Config
	// Identity is no other server's, and the same after a restart: who comes
	// back need not wait until the Lease of its former self has run out.
	Identity string
}

// Election is the component that stands for election as long as it runs. What
// it elects for must depend on it, and so end before it: it hands over at once
// then.
type Election struct {
	identity string
	log      *logrus.Entry
	config   *rest.Config
	// locks holds the Lease, and watches follows it.
	locks, watches kubernetes.Interface

	mu sync.Mutex
	// changed is closed, and replaced, when one of these changes.
	changed chan struct{}
	term    *term  // nil while another server leads, or none
	leader  string // who was last seen to lead, empty before that
	// again makes this server try at once instead of in a while.
	again context.CancelFunc
}

// term is the time from winning the Lease to losing it.
type term struct {
	ctx   context.Context
	loops sync.WaitGroup
}

// New makes an Election; it implements component.Component.
func New(c Config) *Election {
	return &Election{
		identity: c.Identity,
		log:      logrus.WithField("component", "election"),
		config:   c.Client,
		changed:  make(chan struct{}),
	}
}

// Name implements component.Component.
func (*Election) Name() string { return "election" }

// Run implements component.Component. It is ready at once.
func (e *Election) Run(ctx context.Context, ready func()) error {
	if e.locks == nil {
		timely := rest.CopyConfig(e.config)
		// As upstream's (client-go/tools/leaderelection/resourcelock,
		// NewFromKubeconfig): one request that hangs is not the last try.
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
	// Not with ReleaseOnCancel: client-go would first give the Lease back, for
	// which it waits as long as for a renewal, and only then say that it is lost
	// (leaderelection.go, Run and renew). Loops could still be running when
	// another server's begin.
	//upstream:relies-on k8s.io/client-go/tools/leaderelection/leaderelection.go LeaderElector.Run LeaderElector.renew LeaderElector.release
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

// stand stands for election until the Lease was won and lost, or until again.
// The elector remembers from one time to the next since when another leads.
func (e *Election) stand(ctx context.Context, elector *leaderelection.LeaderElector) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.change(func() { e.again = cancel })
	elector.Run(ctx)
	e.end(ctx)
}

// begin begins a term that ends with ctx. client-go calls it in a goroutine, and
// so perhaps when it has lost the Lease again: ctx has ended then.
func (e *Election) begin(ctx context.Context) {
	e.change(func() {
		if ctx.Err() != nil {
			return
		}
		e.log.Info("This server runs the cluster's controllers and scheduler")
		e.term = &term{ctx: ctx}
		e.leader = e.identity
	})
}

// end waits for the loops of a term that is over.
func (e *Election) end(ctx context.Context) {
	var ended *term
	e.change(func() { ended, e.term, e.again = e.term, nil, nil })
	if ended == nil {
		return
	}
	if ctx.Err() == nil {
		e.log.Warnf("Lost the Lease %s/%s, which could not be renewed for %s: controllers and scheduler stop here until it is won again. "+
			"A slow or stalled datastore is the usual cause", leaseNamespace, leaseName, renewDeadline)
	}
	ended.loops.Wait()
}

// follow notes who leads.
func (e *Election) follow(leader string) {
	if leader == "" || leader == e.identity {
		return
	}
	e.change(func() {
		if e.term == nil && e.leader != leader {
			e.log.Infof("Server %s runs the cluster's controllers and scheduler", leader)
		}
		e.leader = leader
	})
}

// change makes a change and wakes who waits for it.
func (e *Election) change(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
	close(e.changed)
	e.changed = make(chan struct{})
}

// watch has this server stand at once when another gives the Lease back.
// client-go looks now and then only.
func (e *Election) watch(ctx context.Context) {
	informer := coordinationinformers.NewFilteredLeaseInformer(e.watches, leaseNamespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + leaseName
	})
	// It fails only on an informer that has stopped.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, object any) {
		lease, ok := object.(*coordinationv1.Lease)
		if !ok || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.term == nil && e.again != nil {
			e.again()
		}
	}})
	informer.RunWithContext(ctx)
}

// release gives the Lease back, if this server has it.
func (e *Election) release(ctx context.Context, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err == nil && record.HolderIdentity != e.identity {
		return
	}
	if err == nil {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions:    record.LeaderTransitions,
			LeaseDurationSeconds: 1,
			RenewTime:            now,
			AcquireTime:          now,
		})
	}
	if err != nil {
		e.log.Debugf("Lease %s/%s was not given back: %v", leaseNamespace, leaseName, err)
	}
}
