// Package policy enforces NetworkPolicies on a node. A server tells it which connections the
// node's pods may have (package netpolicy), and the kubelet tells it which pods there are, and
// their addresses, before their containers start. It writes one nft table. The agent package
// runs it on every node, and the teardown package calls Cleanup.
//
// # Packets
//
// The table filters what is forwarded, and what pods send to their own node. What a node itself
// sends to its pods, such as probes, always passes. The table goes by addresses, not by
// interfaces, so it works with any network whose packets pass the host's netfilter.
//
// Every packet is judged by its connection, not only the first: by the address that has opened
// the connection, and by the address and port that answer. So replies pass, and a connection
// that a new policy forbids ends at once. Packets that belong to no connection are dropped if a
// pod is isolated. Connection tracking is not changed.
//
// A map leads from the address of an isolated pod to the chain of its group. A chain has at
// most six lookups in sets, however many rules and policies the group has. Nothing refers to
// the order of rules.
//
// The cluster's DNS has no pod. What goes to its Service is judged as if that were a pod.
//
// # Failing closed
//
// The table stays when kedge stops. A new process leaves it as it is, until it knows the
// policies and the pods that run. Then one transaction replaces the table. A pod that starts
// before that, or that no server knows, waits for a few seconds. After that it starts with all
// its connections forbidden, until a server tells about it.
//
// # What it does not cover
//
// A pod with CAP_NET_RAW, which pods have by default, can forge packets of another pod on the
// same bridge. Policies do not stop these. Pods of the restricted Pod Security Standard cannot
// do that. Pods on the bridge of kedge's own network have link-local addresses too. While a
// policy isolates a pod of the node, packets between such addresses, multicast and broadcast do
// not pass that bridge. With another network the table does not know the bridge.
package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/published"
)

// Name is the component's name.
const Name = "network-policy"

// patience is how long a pod's start waits for a server to tell about the pod.
const patience = 5 * time.Second

// Config is what New needs.
type Config struct {
	// Policies calls apply with updates. It keeps trying until ctx ends. The first update is Whole,
	// and so is the next one if apply has failed. Policies is nil if the cluster has
	// NetworkPolicies disabled.
	Policies func(ctx context.Context, apply func(netpolicy.Update) error) error
	// ClusterDNS are the addresses of the Service behind which nodes answer DNS. It is empty if
	// pods do that.
	ClusterDNS []netip.Addr
	// Bridge is the bridge of kedge's own network. It is empty with another network.
	Bridge string
	// NoNftables is what of nftables the kernel lacks, or nil.
	NoNftables error
	// Metrics is where the component registers its metrics.
	Metrics prometheus.Registerer
	// WarnPod writes an Event about a pod. It must not block.
	WarnPod func(namespace, name, uid, reason, message string)
}

// Policy is the component. It implements kubelet.Gate.
type Policy struct {
	cfg Config
	log *logrus.Entry
	// patience is the constant, or less in tests.
	patience time.Duration

	mu    sync.Mutex
	table *table // nil until it is first used
	model model
	// told is true after the first update, and listed after Running. Before both, the
	// kernel's table of an earlier kedge stays.
	told, listed bool
	// sandboxes are the pods with a network, by ID.
	sandboxes map[string]netpolicy.Sandbox
	// excess are the groups that are too large for the node.
	excess map[string]bool
	// kernel is what the table has. It is nil if that is not known, as after a failure.
	kernel *kernel
	// news tells those that wait that told, listed or the rules have changed.
	news published.Value[struct{}]
	// again receives when the kernel could not be brought up to date.
	again loop.Changes
}

// kernel is what this process has written to the kernel.
type kernel struct {
	placed   map[netip.Addr]placement
	variants map[variant]*group
	// stale are variants that are not used any more, and could not be removed yet. Their sets
	// are not kept up to date.
	stale map[variant]*group
}

// New returns the component of a node.
func New(cfg Config) *Policy {
	return &Policy{
		cfg: cfg, log: logrus.WithField("component", Name), patience: patience,
		model: newModel(), sandboxes: map[string]netpolicy.Sandbox{},
		again: loop.NewChanges(),
	}
}

// Name implements component.Component.
func (*Policy) Name() string { return Name }

// Enforces tells whether pods need the gate.
func (p *Policy) Enforces() bool { return p.cfg.Policies != nil && p.cfg.NoNftables == nil }

// Run implements component.Component. It follows what the server tells. When ctx is cancelled,
// the table stays, because pods keep running.
func (p *Policy) Run(ctx context.Context, ready func()) error {
	if !p.Enforces() {
		if p.cfg.Policies != nil {
			p.log.Warnf("NetworkPolicies are not enforced on this node: pods have all connections, because %v. Use a kernel with nftables", p.cfg.NoNftables)
		} else if err := Cleanup(ctx); err != nil {
			p.log.Warnf("Cannot remove the firewall rules of NetworkPolicies, which are disabled: %v", err)
		}
		ready()
		<-ctx.Done()
		return nil
	}
	metrics := newCollector(p)
	if err := p.cfg.Metrics.Register(metrics); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	defer p.cfg.Metrics.Unregister(metrics)
	ready()
	p.follow(ctx)
	return nil
}

// follow applies what the server tells, until ctx ends. When the kernel could not be brought up to
// date, it tries that again.
func (p *Policy) follow(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	first := true
	following.Go(func() {
		_ = p.cfg.Policies(ctx, func(update netpolicy.Update) error { // it returns only when ctx ends
			if first && !update.Whole {
				return errors.New("the first update is not a whole one")
			}
			first = false
			return p.apply(ctx, update)
		})
	})
	loop.Loop{Log: p.log, Wake: p.again, Meanwhile: "the rules that are in force stay"}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.kernel != nil {
			return loop.Next{}, nil
		}
		if err := p.enforceLocked(ctx, nil); err != nil {
			return loop.Next{}, fmt.Errorf("cannot enforce NetworkPolicies: %w", err)
		}
		return loop.Next{}, nil
	})
}

// apply takes an update over into the kernel.
func (p *Policy) apply(ctx context.Context, update netpolicy.Update) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := map[string]*group{}
	if p.kernel != nil {
		for v, g := range p.kernel.variants {
			used[v.group] = g
		}
	}
	before := p.model.merge(update, used)
	p.told = true
	err := p.enforceLocked(ctx, before)
	p.news.Set(struct{}{})
	return err
}

// enforceOrRepeat is enforce for callers that cannot fail.
func (p *Policy) enforceOrRepeat(ctx context.Context) {
	if err := p.enforceLocked(ctx, nil); err != nil {
		p.log.Debugf("Cannot enforce NetworkPolicies, trying again at once: %v", err)
		p.again.Notify()
	}
}

// enforceLocked brings the kernel up to date. before has, by group and address, the elements from
// before the model changed. If that fails, the kernel has what it
// had before, and the next call writes everything.
func (p *Policy) enforceLocked(ctx context.Context, before changed) error {
	if !p.told || !p.listed {
		return nil
	}
	placed, excess := p.model.place(p.sandboxes)
	p.tellExcess(excess)
	if p.kernel != nil && len(p.kernel.placed) == 0 && len(placed) == 0 {
		return nil
	}
	table, err := p.tableOrNew()
	if err != nil {
		return err
	}
	if p.kernel != nil && len(p.kernel.placed) > 0 && len(placed) > 0 {
		err := p.change(ctx, table, placed, before)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && !errors.Is(err, errStale) {
			p.log.Warnf("Cannot change the rules of NetworkPolicies, writing all of them: %v", err)
		}
	}
	p.kernel = nil
	variants := variantsOf(placed, p.model.groups)
	if err := table.replace(ctx, placed, variants, p.model.members); err != nil {
		return err
	}
	p.kernel = &kernel{placed, variants, map[variant]*group{}}
	return nil
}

// tellExcess tells the users of pods whose group does not fit, once.
func (p *Policy) tellExcess(excess map[string]bool) {
	const text = "the NetworkPolicies of the pod do not fit its node, so all its connections are forbidden, except from the node: " +
		"those of its namespace allow too many addresses and ports together, and more than those of other namespaces. " +
		"Use ranges of ports (endPort), blocks of addresses, or fewer peers"
	if len(excess) > 0 {
		for _, s := range p.sandboxes {
			pod := p.model.pods[s.Namespace+"/"+s.Name]
			if p.model.knows(s) && (excess[pod.Ingress] && !p.excess[pod.Ingress] || excess[pod.Egress] && !p.excess[pod.Egress]) {
				p.log.Warnf("Pod %s/%s: %s", s.Namespace, s.Name, text)
				p.cfg.WarnPod(s.Namespace, s.Name, s.UID, excessReason, text)
			}
		}
	}
	p.excess = excess
}

// errStale says that the kernel has an old state of what is needed.
var errStale = errors.New("a group is back that could not be removed")

// change writes the differences between what the kernel has and what it should have.
func (p *Policy) change(ctx context.Context, t *table, placed map[netip.Addr]placement, before changed) error {
	p.sweep(ctx, t) // what could not be removed the last time
	w, variants := t.writer(), variantsOf(placed, p.model.groups)
	for v, g := range variants {
		switch {
		case p.kernel.stale[v] != nil:
			return errStale
		case p.kernel.variants[v] == nil:
			t.addVariant(w, v, g, p.model.members)
		default:
			for address, old := range before[v.group] {
				if address.Is4() == v.is4 {
					w.exchange(v, old, g.of(address, p.model.in))
				}
			}
		}
	}
	t.place(w, p.kernel.placed, placed)
	w.elements()
	if err := t.run(ctx, w); err != nil {
		return err
	}
	for v, g := range p.kernel.variants {
		if variants[v] == nil {
			p.kernel.stale[v] = g
		}
	}
	p.kernel.placed, p.kernel.variants = placed, variants
	p.sweep(ctx, t)
	return nil
}

// sweep removes chains and sets that are not used any more. Kernels before 6.2 still refer to a
// chain for a moment after its last element is gone, so that is no fault: the next call tries
// again.
func (p *Policy) sweep(ctx context.Context, t *table) {
	if len(p.kernel.stale) == 0 {
		return
	}
	w, counters := t.writer(), map[string]bool{}
	for v, g := range p.kernel.stale {
		t.removeVariant(w, v, g)
		counters[v.counter()] = true
	}
	for v := range p.kernel.variants {
		delete(counters, v.counter())
	}
	for counter := range counters {
		w.Delete(&knftables.Counter{Name: counter})
	}
	if err := t.run(ctx, w); err != nil {
		p.log.Debugf("Cannot remove unused firewall rules yet: %v", err)
		return
	}
	clear(p.kernel.stale)
}

// tableOrNew returns the table. It runs nft only when there is something to do.
func (p *Policy) tableOrNew() (*table, error) {
	if p.table == nil {
		nft, err := knftables.New(knftables.InetFamily, tableName)
		if err != nil {
			return nil, fmt.Errorf("use nftables: %w", err)
		}
		p.table = &table{nft: nft, bridge: p.cfg.Bridge, dns: p.cfg.ClusterDNS}
	}
	return p.table, nil
}

// Cleanup removes the table. It returns nil if there is none, or no nftables.
func Cleanup(ctx context.Context) error {
	nft, err := knftables.New(knftables.InetFamily, tableName)
	if err != nil {
		return nil
	}
	return remove(ctx, nft)
}
