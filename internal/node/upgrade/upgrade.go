// Package upgrade upgrades a node when a Plan says so: it gets the executable, checks it, and
// ends the process for a trial of it (package trial). A server tells it which kedge the node is
// to run (package upgrades). As the kubelet, the component writes on the Node how far it is. The
// agent package runs it on every node.
//
// While a new executable is on trial, the component of that process follows no orders. It tells
// the guard whether the Node is ready.
package upgrade

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// Name is the component's name. The controller on a server is called upgrade.
const Name = "upgrade-node"

// lastWord is how long the node tries to tell that a trial begins.
const lastWord = 5 * time.Second

// Config is what New needs.
type Config struct {
	// Orders calls apply with what the node is to run, again and again. It keeps trying until
	// ctx ends.
	Orders func(ctx context.Context, apply func(upgrades.Order) error) error
	// Fetch calls take with the executable that has a digest, until take returns nil. It may
	// have it from several places.
	Fetch func(ctx context.Context, digest string, take func(io.Reader) error) error
	// Installed is the path of this process's executable. Own leads to that, whatever has
	// become of its path.
	Installed, Own string
	// Version is this kedge's.
	Version string
	// Record is the file of the trial.Record.
	Record string
	// Trial is set if this process is on trial.
	Trial *trial.Child
	// Client calls as the kubelet of this node.
	Client *rest.Config
	// Informers provide nodes.
	Informers objectcache.Source
	NodeName  string
}

// upgrader is the component.
type upgrader struct {
	cfg Config
	log *logrus.Entry
	// anew tells whether the kubelet of this process has written the condition Ready of a Node.
	anew func(*corev1.Node) bool
	// api is a fake in tests.
	api   kubernetes.Interface
	nodes corelisters.NodeLister
	// changes receives when there may be something to report.
	changes loop.Changes
	// record is the one of the last trial.
	record trial.Record

	mu sync.Mutex
	// report is what the Node has to tell, if it has an ID.
	report upgrades.Report
	// order is the newest one. end ends what is being done for the one before.
	order upgrades.Order
	end   context.CancelFunc
}

// New returns the component of a node.
func New(cfg Config) component.Component { return newUpgrader(cfg) }

func newUpgrader(cfg Config) *upgrader {
	return &upgrader{
		cfg: cfg, log: logrus.WithField("component", Name), anew: nodeobject.Anew(), changes: loop.NewChanges(), end: func() {},
	}
}

// Name implements component.Component.
func (*upgrader) Name() string { return Name }

// Run implements component.Component. It is ready at once. It fails with trial.ErrBegin when the
// process has to execute itself again for a trial.
func (u *upgrader) Run(ctx context.Context, ready func()) error {
	if u.api == nil {
		api, err := kubernetes.NewForConfig(u.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		u.api = api
	}
	var working sync.WaitGroup
	defer working.Wait()
	ctx, factory, end, err := u.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	nodes := factory.Core().V1().Nodes()
	u.nodes = nodes.Lister()
	// Adding a handler fails only on an informer that has stopped.
	handler, err := nodes.Informer().AddEventHandler(objectcache.Handler[*corev1.Node](u.changes,
		func(node *corev1.Node) bool { return node.Name == u.cfg.NodeName },
		func(before, now *corev1.Node) bool {
			return told(before) == told(now) && before.UID == now.UID && nodeobject.Ready(before) == nodeobject.Ready(now)
		}))
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	factory.StartWithContext(ctx)
	u.remember()
	ready()
	working.Go(func() {
		if cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
			u.keepReporting(ctx)
		}
	})
	if u.cfg.Trial.Running() {
		<-ctx.Done()
		return nil
	}
	// It returns only when ctx ends.
	working.Go(func() { _ = u.cfg.Orders(ctx, u.apply) })
	return u.obey(ctx)
}

// remember reads what became of the last trial.
func (u *upgrader) remember() {
	var err error
	if u.cfg.Trial.Running() {
		u.record, err = trial.Read(u.cfg.Record)
		u.tell(u.record.Report)
	} else {
		u.record, err = trial.Resume(u.cfg.Record, u.cfg.Installed)
		// An order whose trial was interrupted may not come again.
		if u.record.Report.Stage != upgrades.Trying {
			u.tell(u.record.Report)
		}
	}
	if err != nil {
		u.log.Warn(err)
	}
}

// apply takes an order. It may be the same as before.
func (u *upgrader) apply(order upgrades.Order) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if order != u.order {
		u.order = order
		u.end()
	}
	return nil
}

// obey carries out orders until ctx ends, or until a trial has to begin.
func (u *upgrader) obey(ctx context.Context) error {
	for ctx.Err() == nil {
		u.mu.Lock()
		order := u.order
		current, end := context.WithCancel(ctx)
		u.end = end
		u.mu.Unlock()
		err := u.carryOut(current, order)
		if err == nil {
			<-current.Done() // for another order
		}
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// tell lets the Node say how far an order is.
func (u *upgrader) tell(report upgrades.Report) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.report = report
	u.changes.Notify()
}

// at tells a stage of an order.
func (u *upgrader) at(order upgrades.Order, stage upgrades.Stage, message string) {
	u.tell(upgrades.Report{ID: order.ID, Stage: stage, Message: message, Time: time.Now().UTC().Truncate(time.Second)})
}

// wanted returns what the Node has to tell, "" if nothing. unready says why the Node is not ready, "" if it is. A Node that is
// not ready does not tell that it is upgraded, because the upgrade of the next node begins with that report.
func (u *upgrader) wanted(unready string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.report.ID == "" || u.report.Stage == upgrades.Upgraded && unready != "" {
		return ""
	}
	return upgrades.FormatReport(u.report)
}

// told returns what a Node tells.
func told(node *corev1.Node) string { return node.Annotations[upgrades.ReportAnnotation] }

// unready returns why a Node is not ready, "" if it is. What was said before this process began
// does not count.
func (u *upgrader) unready(node *corev1.Node) string {
	ready := nodeobject.Ready(node)
	switch {
	case !u.anew(node):
		return "the kubelet, which has not said that the Node is ready"
	case ready.Status != corev1.ConditionTrue:
		return "the Node, which is not ready: " + ready.Message
	}
	return ""
}

// keepReporting lets the Node say how far the order is, until ctx ends. During a trial it also
// tells the guard whether the Node is ready.
func (u *upgrader) keepReporting(ctx context.Context) {
	loop.Loop{Log: u.log, Wake: u.changes}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		node, err := u.nodes.Get(u.cfg.NodeName)
		if err != nil {
			u.cfg.Trial.Node("the Node, which is not there")
			return loop.Next{}, nil
		}
		unready := u.unready(node)
		u.cfg.Trial.Node(unready)
		if wanted := u.wanted(unready); wanted != "" && told(node) != wanted {
			err = u.write(ctx, wanted)
		}
		return loop.Next{}, err
	})
}

// write writes a report on the Node.
func (u *upgrader) write(ctx context.Context, report string) error {
	if err := nodeobject.Annotate(ctx, u.api.CoreV1().Nodes(), u.cfg.NodeName, map[string]string{upgrades.ReportAnnotation: report}); err != nil {
		return fmt.Errorf("report on the upgrade of this node: %w", err)
	}
	return nil
}
