package upgradecontrol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

// copyPause is how long Plans waits until it tries again to get an executable.
const copyPause = time.Minute

// Config is what Plans needs.
type Config struct {
	// Client calls as upgrades.ControllerUser, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Store has the executables of this server.
	Store *store.Store
}

// Plans is the component that knows the Plans of the cluster. It tells nodes what to run, and
// keeps a copy of each executable that a Plan needs.
type Plans struct {
	cfg   Config
	log   *logrus.Entry
	dial  func(*rest.Config) (dynamic.Interface, error) // another one in tests
	ended chan struct{}
	// ignored are the Plans that cannot be read.
	ignored loop.Faults
	// newest are the Plans, the oldest first. It is nil until they are known.
	newest published.Value[[]*upgrades.Plan]
}

// New makes the component.
func New(cfg Config) *Plans {
	log := logrus.WithField("component", "upgrade")
	return &Plans{
		cfg: cfg, log: log, ended: make(chan struct{}), ignored: loop.Faults{Log: log},
		dial: func(config *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(config) },
	}
}

// Name implements component.Component.
func (*Plans) Name() string { return "upgrade-plans" }

// Run implements component.Component. It is ready at once: the API may know the kind of Plans a
// moment later.
func (p *Plans) Run(ctx context.Context, ready func()) error {
	defer close(p.ended)
	ready()
	client, err := p.dial(p.cfg.Client(ctx))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := p.cfg.Store.Clean(); err != nil {
		p.log.Warnf("Cannot remove unfinished executables: %v", err)
	}
	objectcache.UntilKnown(ctx, func(ctx context.Context) error {
		_, err := client.Resource(upgrades.Plans).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
	informer := dynamicinformer.NewFilteredDynamicInformer(client, upgrades.Plans, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := informer.SetTransform(objectcache.WithoutManagedFields); err != nil {
		return fmt.Errorf("watch Plans: %w", err)
	}
	changes := loop.NewChanges()
	registration, err := informer.AddEventHandler(objectcache.Handler[*unstructured.Unstructured](changes, nil, nil))
	if err != nil {
		return fmt.Errorf("watch Plans: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	running.Go(func() { p.keep(ctx) })
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil
	}
	for {
		p.newest.Set(p.read(informer.GetStore().List()))
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		}
	}
}

// Executable opens the executable with a digest. Its error is fs.ErrNotExist if this server does
// not have it.
func (p *Plans) Executable(digest string) (*os.File, error) { return p.cfg.Store.Open(digest) }

// read returns the Plans of a list, the oldest first. It never returns nil.
func (p *Plans) read(list []any) []*upgrades.Plan {
	plans := make([]*upgrades.Plan, 0, len(list))
	var ignored []error
	for _, object := range list {
		custom, is := object.(*unstructured.Unstructured)
		if !is {
			continue
		}
		plan, err := decode(custom)
		if err != nil {
			ignored = append(ignored, fmt.Errorf("ignoring a Plan: %w", err))
			continue
		}
		plans = append(plans, plan)
	}
	slices.SortFunc(ignored, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	p.ignored.Tell(errors.Join(ignored...))
	slices.SortFunc(plans, compareAge)
	return plans
}

// Watch sends a node what it is to run, now and after each change. It returns nil when ctx ends,
// and otherwise the error of send, or published.ErrEnded when the component has ended. It may be
// called before Run.
func (p *Plans) Watch(ctx context.Context, node string, send func(upgrades.Order) error) error {
	var sent *upgrades.Order
	return p.newest.Watch(ctx, p.ended, func(plans []*upgrades.Plan) error {
		order := orderOf(plans, node)
		if plans == nil || sent != nil && *sent == order {
			return nil
		}
		sent = &order
		return send(order)
	})
}

// orderOf returns what Plans tell a node to run.
func orderOf(plans []*upgrades.Plan, node string) upgrades.Order {
	for _, plan := range plans {
		if order := plan.OrderFor(node); order != (upgrades.Order{}) {
			return order
		}
	}
	return upgrades.Order{}
}

// keep keeps a copy of each executable that a Plan needs, so that nodes can go on while another
// server is being upgraded, or has died. It removes the others.
func (p *Plans) keep(ctx context.Context) {
	loop.Loop{Log: p.log}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		plans, renewed := p.newest.Get()
		next := loop.Next{Changed: renewed}
		if plans != nil && !p.copyAll(ctx, plans, renewed) {
			next.After = copyPause
		}
		return next, nil
	})
}

// copyAll gets what Plans need, and removes what none needs, unless they are renewed meanwhile.
// It returns false if something is missing.
func (p *Plans) copyAll(ctx context.Context, plans []*upgrades.Plan, renewed <-chan struct{}) (all bool) {
	wanted, resolving := map[string]bool{}, false
	for _, plan := range plans {
		if plan.Status.ObservedGeneration == plan.Generation && ended(&plan.Status) {
			continue
		}
		// Until a Plan is resolved, nobody knows what it needs.
		if resolving = resolving || plan.Status.Phase == "" || plan.Status.Phase == upgrades.Resolving; plan.Spec.File != "" {
			wanted[plan.Spec.SHA256] = true
			// Most servers do not have the file.
			if err := p.cfg.Store.Take(plan.Spec.File, plan.Spec.SHA256); err != nil {
				p.log.Debugf("Plan %s: %v", plan.Name, err)
			}
		}
		for _, executable := range plan.Status.Executables {
			wanted[executable.SHA256] = true
		}
	}
	all = true
	for digest := range wanted {
		if err := p.cfg.Store.Fetch(ctx, digest); err != nil {
			all = false
			if !errors.Is(err, fs.ErrNotExist) {
				p.log.Debugf("Cannot copy the executable %s from another server: %v", digest, err)
			}
		}
	}
	select {
	case <-renewed:
		return all
	default:
	}
	if resolving {
		return all
	}
	if err := p.cfg.Store.Keep(wanted); err != nil {
		p.log.Warn(err)
	}
	return all
}
