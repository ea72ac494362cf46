// Package gatewaycontrol is the control plane of Gateways and Ingresses. It has two components, and ties
// together what the packages below it do.
//
// The Compiler runs on every server with an API server. It works everything out anew a short time after
// a change (compile.go): it reads the objects that are needed (package sources), works out what they mean
// (compile, ingress, hosts, front), leaves out what nodes would not accept (bounds), and divides the rest
// among the nodes (parts.go). A node is told only what differs from before.
//
// The Controller runs on the elected server (controller.go). It writes what follows into the cluster, if
// it differs: the Services by which clients reach the nodes (services), Events (faults), statuses
// (statuses), who has which host (hosts), and certificates while an object asks for them (acme).
package gatewaycontrol

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/sources"
)

const name = "gateway-compiler"

const (
	// collectTime is how long the Compiler waits for further changes after the first one.
	collectTime = 20 * time.Millisecond
	// restTime is the time from the beginning of a run to that of the next one, at least. A run with
	// thousands of routes takes longer, and so does one on a busy host. Then it is restShare times as long
	// as the run, and at most mostRest.
	restTime  = 100 * time.Millisecond
	restShare = 10
	mostRest  = time.Second
	// maxLogged is how many of the values that nodes do not get are logged in words.
	maxLogged = 8
)

// Config is what a Compiler has to know.
type Config struct {
	// Client calls as system:kedge:gateway-controller, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers are the informers that this process shares.
	Informers objectcache.Source
	// Pools says that kedge gives Services addresses of LoadBalancerPools.
	Pools bool
	// Sockets are the settings of all sockets.
	Sockets front.Options
	// Backends says which addresses the endpoints of backends may have.
	Backends endpoints.Rules
	// IngressClasses are further classes of Ingresses that kedge serves.
	IngressClasses []string
	// Ports are further ports of the shared front than 80 and 443.
	Ports []uint16
	// ShareHosts says that hosts belong to no namespace.
	ShareHosts bool
	// Metrics is where the Compiler registers its metrics, or nil.
	Metrics prometheus.Registerer
}

// Compiler is the component.
type Compiler struct {
	cfg     Config
	dial    func(*rest.Config) (dynamic.Interface, error) // another one in tests
	metrics *metrics
	ended   chan struct{}
	// changes receives when an object has changed that may matter.
	changes loop.Changes
	// logged is what was logged last. Only the goroutine of Run uses it.
	logged string
	// newest is what was worked out last. It is nil before the first time.
	newest published.Value[*compiled]
}

// New makes the component.
func New(cfg Config) *Compiler {
	return &Compiler{
		cfg: cfg, metrics: newMetrics(), ended: make(chan struct{}),
		dial:    func(config *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(config) },
		changes: loop.NewChanges(),
	}
}

// Name implements component.Component.
func (*Compiler) Name() string { return name }

// Run implements component.Component. It is ready when it can tell nodes what to serve.
func (c *Compiler) Run(ctx context.Context, ready func()) error {
	defer close(c.ended)
	custom, err := c.dial(c.cfg.Client(ctx))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if c.cfg.Metrics != nil {
		if err := c.cfg.Metrics.Register(c.metrics); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	from, err := sources.Start(ctx, sources.Config{Custom: custom, Informers: c.cfg.Informers, Pools: c.cfg.Pools, Changes: c.changes})
	if err != nil {
		return err
	}
	defer from.Stop()
	ready = sync.OnceFunc(ready)
	for {
		begun := time.Now()
		now, err := c.compile(ctx, from)
		if err != nil || ctx.Err() != nil {
			return err
		}
		took := time.Since(begun)
		c.newest.Set(now)
		c.log(now)
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-c.changes:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(collectTime, restAfter(took)-time.Since(begun))):
		}
		select {
		case <-c.changes: // they are all seen now
		default:
		}
	}
}

// restAfter returns the time from the beginning of a run that took so long to that of the next one.
func restAfter(took time.Duration) time.Duration {
	return max(restTime, min(restShare*took, mostRest))
}

// before returns the newest result, or an empty one before the first.
func (c *Compiler) before() *compiled {
	if newest, _ := c.newest.Get(); newest != nil {
		return newest
	}
	return &compiled{}
}

// log logs what nodes do not get, if it is not the same as before.
func (c *Compiler) log(now *compiled) {
	var refused strings.Builder
	for _, r := range now.refusals[:min(len(now.refusals), maxLogged)] {
		refused.WriteString("; " + r.String())
	}
	if text := refused.String(); text != c.logged {
		if c.logged = text; text != "" {
			logrus.WithField("component", name).Warnf("Nodes do not get %d values%s", len(now.refusals), text)
		}
	}
}

// Watch sends what a node has to serve: first everything, and then each change. While send
// runs, changes are put together. A node gets only what the fronts that it serves lead to.
// Watch returns nil when ctx ends, and otherwise the error of send, or published.ErrEnded when the
// component has ended. It may be called before Run. Nobody may change what an update points to.
func (c *Compiler) Watch(ctx context.Context, node string, send func(routing.Update) error) error {
	var sent *routing.State
	return c.newest.Watch(ctx, c.ended, func(newest *compiled) error {
		if newest == nil || newest.parts.of(node) == sent {
			return nil
		}
		before := sent
		sent = newest.parts.of(node)
		if update := routing.Diff(before, sent); !update.IsEmpty() {
			return send(update)
		}
		return nil
	})
}
