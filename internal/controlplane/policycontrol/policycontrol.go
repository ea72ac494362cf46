// Package policycontrol works out what the NetworkPolicies of the cluster mean for the pods of
// each node, and tells the nodes. Every server with an API server runs it. Package
// supervisor serves it to agents, and the node in the same process asks it directly. It
// also answers `kedge netpol explain`.
//
// While the cluster has no NetworkPolicy, only these are watched. The first one starts
// the rest, and the last one ends it.
package policycontrol

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
)

const name = "policy-compiler"

// tooLargeReason is the reason of the Event about a policy whose rules are not enforced.
const tooLargeReason = "TooLarge"

// Config is what a Compiler has to know.
type Config struct {
	// Client calls as system:kedge:network-policy, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers are the informers that this process shares.
	Informers objectcache.Source
	// DNS are the addresses of the cluster's DNS. It is empty if kedge does not answer
	// DNS, because the pods that do are pods like others.
	DNS []netip.Addr
	// ServiceCIDRs are the ranges of Services, for messages.
	ServiceCIDRs []netip.Prefix
	// Gateway says that gateways of nodes call pods from addresses of their own (gateways.Source).
	Gateway bool
}

// Compiler is the component.
type Compiler struct {
	cfg   Config
	ended chan struct{}
	// turn has a value if policies have appeared or gone.
	turn loop.Changes

	mu    sync.Mutex
	model *model
	// objects has all pods while the model is active, also those that policies are not
	// for. term counts how often there were first policies. Handlers of a former term do
	// nothing.
	objects cache.Store
	term    int
}

// New makes the component.
func New(cfg Config) *Compiler {
	return &Compiler{cfg: cfg, ended: make(chan struct{}), turn: loop.NewChanges(), model: newModel(func(text string) { logrus.WithField("component", name).Warn(text) })}
}

// Name implements component.Component.
func (*Compiler) Name() string { return name }

// Run implements component.Component. It is ready when it can tell nodes what holds.
func (c *Compiler) Run(ctx context.Context, ready func()) error {
	defer close(c.ended)
	factory, err := c.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	log := logrus.WithField("component", c.Name())
	api, err := kubernetes.NewForConfig(c.cfg.Client(ctx))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	recorder := sync.OnceValue(func() record.EventRecorder { return events.NewRecorder(ctx, api, "kedge-network-policy", "") })
	policies, err := factory.Networking().V1().NetworkPolicies().Informer().AddEventHandler(objectcache.Each(
		func(object *networkingv1.NetworkPolicy) {
			c.change(func() {
				if now := c.model.setPolicy(object); now != nil && now.tooLarge != "" {
					text := now.tooLarge + ". It isolates its pods, and its rules allow nothing. Use selectors of more pods, ranges of ports (endPort), or larger blocks"
					log.Warnf("NetworkPolicy %s is too large: %s", now.key, text)
					recorder().Event(object, corev1.EventTypeWarning, tooLargeReason, events.Message("This NetworkPolicy is too large: "+text))
				}
			})
		},
		func(key string) { c.change(func() { c.model.deletePolicy(key) }) },
	))
	if err != nil {
		return fmt.Errorf("watch NetworkPolicies: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", policies.HasSyncedChecker()) {
		return nil
	}
	ready = sync.OnceFunc(ready)
	for {
		if c.rest() {
			ready()
			select {
			case <-ctx.Done():
				return nil
			case <-c.turn:
			}
			continue
		}
		if err := c.follow(ctx, ready); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// rest tells whether there are no policies. Then it forgets pods and namespaces.
func (c *Compiler) rest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.model.policies) > 0 {
		return false
	}
	if c.model.active || !c.model.known {
		c.term++
		c.objects = nil
		c.model.forget()
		c.model.setActive(false)
	}
	return true
}

// follow keeps the model in step with pods and namespaces until there is no policy any
// more or ctx ends.
func (c *Compiler) follow(ctx context.Context, ready func()) error {
	ctx, factory, end, err := c.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	c.mu.Lock()
	c.term++
	term := c.term
	if len(c.cfg.DNS) > 0 {
		c.model.setPod(clusterDNS(c.cfg.DNS))
	}
	c.mu.Unlock()
	during := func(do func()) {
		c.change(func() {
			if c.term == term {
				do()
			}
		})
	}
	namespaces, err := factory.Core().V1().Namespaces().Informer().AddEventHandler(objectcache.Each(
		func(object *corev1.Namespace) { during(func() { c.model.setNamespace(object.Name, object.Labels) }) },
		func(key string) { during(func() { c.model.deleteNamespace(key) }) },
	))
	if err != nil {
		return fmt.Errorf("watch namespaces: %w", err)
	}
	informer := factory.Core().V1().Pods().Informer()
	pods, err := informer.AddEventHandler(objectcache.Each(
		func(object *corev1.Pod) {
			during(func() {
				if p := podOf(object); p != nil {
					c.model.setPod(p)
				} else {
					c.model.deletePod(object.Namespace + "/" + object.Name)
				}
			})
		},
		func(key string) { during(func() { c.model.deletePod(key) }) },
	))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", namespaces.HasSyncedChecker(), pods.HasSyncedChecker()) {
		return nil
	}
	c.mu.Lock()
	c.objects = informer.GetStore()
	c.model.setActive(true)
	c.mu.Unlock()
	ready()
	for !c.rest() {
		select {
		case <-ctx.Done():
			return nil
		case <-c.turn:
		}
	}
	return nil
}

// The labels of kube-dns, which policies select that allow DNS.
const (
	dnsNamespace = metav1.NamespaceSystem
	dnsLabel     = "k8s-app"
	dnsName      = "kube-dns"
	// dnsKey is the key of the pod that stands for the cluster's DNS. No real pod has a
	// name with a space.
	dnsKey = dnsNamespace + "/cluster DNS"
)

// clusterDNS returns a pod that stands for the DNS of the cluster, which has no pods:
// each node answers DNS itself. Policies that allow DNS select it as they select the pods
// of other distributions.
func clusterDNS(addresses []netip.Addr) *pod {
	return &pod{
		key: dnsKey, namespace: dnsNamespace, labels: map[string]string{dnsLabel: dnsName}, addresses: inOrder(addresses),
		ports: []namedPort{{portName{17, "dns"}, 53}, {portName{6, "dns-tcp"}, 53}},
	}
}

// change changes the model.
func (c *Compiler) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := len(c.model.policies) > 0
	do()
	if has := len(c.model.policies) > 0; has != had {
		c.turn.Notify()
	}
}

// Watch sends what a node has to know: first everything, and then each change. While send
// runs, changes are put together. Watch returns nil when ctx ends, and otherwise the
// error of send, or published.ErrEnded when the component has ended. It may be called before
// Run. Nobody may change what an update points to.
func (c *Compiler) Watch(ctx context.Context, node string, send func(netpolicy.Update) error) error {
	c.mu.Lock()
	w := c.model.watch(node)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.model.leaveNode(node, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.ended:
			return published.ErrEnded
		case <-w.signal:
		}
		c.mu.Lock()
		update, changed := c.model.takeUpdate(node, w)
		c.mu.Unlock()
		if !changed {
			continue
		}
		if err := send(update); err != nil {
			return err
		}
	}
}
