// Package gateway serves Gateways and Ingresses on a node, and reports which sockets are
// open. A server tells it which sockets there are and what comes through them (package
// routing). The component gives that to two parts that serve it: package sockets listens, and
// package requests answers HTTP requests. The component also says on the Node which sockets
// are open. The controller on a server (internal/controlplane/gatewaycontrol) sends clients only to
// nodes that say so. The agent package runs it on every node.
//
// As long as there is no Gateway and no Ingress, the component waits for a line of the stream
// and does nothing else.
//
// # Starting
//
// The component is ready when its sockets are open and the node has said so. An upgrade of the
// cluster restarts one node after the other, and waits until kedge is ready on each. So when the
// next node stops, the one before it takes its clients over.
//
// # Stopping
//
// First the node says no more that it listens, so that no new clients come. If other nodes
// listen, the sockets stay open for Config.Notice, which is the time that the other nodes and
// load balancers need to learn of it. Then the sockets close, and requests may end.
package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Name is the component's name. The controller on a server is called gateway.
const Name = "gateway-node"

const (
	// servePatience is how long the component may take to be ready. A server that has
	// disabled the gateway since the node started tells it nothing.
	servePatience = 30 * time.Second
	// leavePatience is how long a node that stops tries to say so.
	leavePatience = 5 * time.Second
)

// Config is what New needs.
type Config struct {
	// Routes calls apply with updates of what the node serves: first everything, and then
	// each change. It keeps trying until ctx ends. It is nil if the cluster has the gateway
	// disabled.
	Routes func(ctx context.Context, apply func(routing.Update) error) error
	// Parts makes the parts that serve. It is called when there is a socket to open. podCIDRs returns
	// the ranges of this node's pods, as far as they are known.
	Parts func(podCIDRs func() []string) (Requests, Sockets)
	// Client calls as gateways.User, in the group of this node.
	Client *rest.Config
	// Informers provide nodes.
	Informers objectcache.Source
	NodeName  string
	// Notice is how long sockets stay open after the node has said that it stops.
	Notice time.Duration
}

// gateway is the component.
type gateway struct {
	cfg Config
	log *logrus.Entry
	// api is a fake in tests.
	api kubernetes.Interface
	// changes receives when there may be something to report.
	changes loop.Changes
	serving serving
	// told is true after the first update.
	told  atomic.Bool
	nodes corelisters.NodeLister
	// said is true from the first attempt to say that sockets are open until the Node says
	// nothing of the kind.
	said bool
}

// New returns the component of a node.
func New(cfg Config) component.Component {
	g := &gateway{cfg: cfg, log: logrus.WithField("component", Name), changes: loop.NewChanges()}
	g.serving = serving{parts: func() (Requests, Sockets) { return cfg.Parts(g.podCIDRs) }, changed: g.changes.Notify}
	return g
}

// podCIDRs returns the ranges of this node's pods, or nil if they are not known.
func (g *gateway) podCIDRs() []string {
	node, err := g.nodes.Get(g.cfg.NodeName)
	if err != nil {
		return nil
	}
	return node.Spec.PodCIDRs
}

// Name implements component.Component.
func (*gateway) Name() string { return Name }

// Run implements component.Component. When it returns, the node serves nothing any more.
func (g *gateway) Run(ctx context.Context, ready func()) error {
	if g.cfg.Routes == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	if g.api == nil {
		api, err := kubernetes.NewForConfig(g.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		g.api = api
	}
	// What is open stays open, and up to date, until clients have turned to other nodes.
	open, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	factory, err := g.cfg.Informers(open)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	defer end()
	nodes := factory.Core().V1().Nodes()
	g.nodes = nodes.Lister()
	// Adding a handler fails only on an informer that has stopped.
	handler, err := nodes.Informer().AddEventHandler(objectcache.Handler(g.changes,
		func(node *corev1.Node) bool { return node.Name == g.cfg.NodeName },
		func(before, now *corev1.Node) bool { return told(before) == told(now) && before.UID == now.UID }))
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	factory.StartWithContext(open)
	late := time.AfterFunc(servePatience, ready)
	defer late.Stop()

	var following sync.WaitGroup
	// It returns only when open ends.
	following.Go(func() {
		_ = g.cfg.Routes(open, func(update routing.Update) error {
			err := g.serving.apply(update)
			if !g.told.Swap(true) {
				g.changes.Notify()
			}
			return err
		})
	})
	if cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
		g.keepReporting(ctx, ready)
	}
	g.leave(open)
	end()
	following.Wait()
	g.serving.stop()
	return nil
}

// keepReporting says on the Node which sockets are open, until ctx ends. It calls ready when the Node
// says it and a server has told which ones there are.
func (g *gateway) keepReporting(ctx context.Context, ready func()) {
	loop.Loop{
		Log: g.log, Wake: g.changes, Meanwhile: "clients may not be sent to this node",
		// It is forbidden if the servers have disabled the gateway since this node started.
		Quiet: apierrors.IsForbidden,
	}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		told := g.told.Load() // before the sockets are looked at
		err := g.report(ctx, gateways.FormatListening(g.serving.listening()))
		if err == nil && told {
			ready()
		}
		return loop.Next{}, err
	})
}

// leave says that this node no longer listens, and gives other nodes the time to take its
// clients over. The sockets are still open when it returns.
func (g *gateway) leave(ctx context.Context) {
	if !g.said && !g.reported() {
		return
	}
	patience, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	if err := g.write(patience, ""); err != nil {
		// Nobody learns that this node stops, so waiting does not help.
		g.log.Infof("The node cannot say that its gateway stops: %v", err)
		return
	}
	if !g.othersListen() {
		return
	}
	g.serving.drain()
	_ = loop.Sleep(ctx, g.cfg.Notice)
}
