package loadbalancer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/node/announce"
)

// Each node that goes before this one has turnDelay more time to take a free address, up to
// maxTurns.
const (
	turnDelay = 150 * time.Millisecond
	maxTurns  = 4
)

// announcing is the part that announces addresses. It runs while a Service has one.
type announcing struct {
	*loadBalancer
	cancel  context.CancelFunc // nil while it does not run
	running sync.WaitGroup

	// mu is for contenders, by the names of Leases. The informer's goroutine uses them, too.
	mu         sync.Mutex
	contenders map[string]*contending
}

// contending is a Contender that runs.
type contending struct {
	*announce.Contender
	address netip.Addr
	cancel  context.CancelFunc
}

// set starts or stops announcing.
func (a *announcing) set(ctx context.Context, needed bool) {
	if !needed {
		a.stop()
		return
	}
	if a.cancel != nil {
		return
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.contenders = map[string]*contending{}
	informer := coordinationinformers.NewFilteredLeaseInformer(a.api, servicelb.Namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = servicelb.LeaseLabel
	})
	// AddEventHandler fails only on an informer that has stopped.
	_, _ = informer.AddEventHandler(objectcache.Each(
		func(lease *coordinationv1.Lease) { a.see(ctx, lease) },
		func(key string) { a.end(strings.TrimPrefix(key, servicelb.Namespace+"/")) },
	))
	a.running.Go(func() { informer.RunWithContext(ctx) })
}

// stop stops announcing and waits until the node has none of the addresses.
func (a *announcing) stop() {
	if a.cancel == nil {
		return
	}
	a.cancel()
	a.running.Wait()
	a.cancel = nil
}

// see contends for a Lease if this node may hold it.
func (a *announcing) see(ctx context.Context, lease *coordinationv1.Lease) {
	address, err := netip.ParseAddr(lease.Annotations[servicelb.AddressOfLease])
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.contenders[lease.Name]
	if err != nil || !servicelb.MayHold(lease.Annotations, a.cfg.NodeName) {
		if one != nil {
			one.Retire()
		}
		return
	}
	if one == nil {
		if ctx.Err() != nil {
			return
		}
		own, cancel := context.WithCancel(ctx)
		one = &contending{announce.New(announce.Config{
			Address:   address,
			Leases:    a.api.CoordinationV1().Leases(servicelb.Namespace),
			Identity:  a.cfg.NodeName,
			Host:      a.host,
			Reconnect: a.cfg.Reconnect,
			Log:       a.log,
		}), address, cancel}
		a.contenders[lease.Name] = one
		a.running.Go(func() {
			one.Run(own)
			cancel()
			a.forget(lease.Name, one)
		})
	}
	one.See(lease, turn(lease, a.cfg.NodeName)*turnDelay)
}

// end stops contending for a Lease.
func (a *announcing) end(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.contenders[name]; one != nil {
		one.cancel()
		delete(a.contenders, name)
	}
}

// forget notes that a contender has ended.
func (a *announcing) forget(name string, one *contending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.contenders[name] == one {
		delete(a.contenders, name)
	}
}

// turn returns how many nodes go before this one when a Lease is free. Each address has
// another order of nodes, so that the nodes share the addresses.
func turn(lease *coordinationv1.Lease, own string) time.Duration {
	rank := func(node string) [sha256.Size]byte { return sha256.Sum256([]byte(node + "\x00" + lease.Name)) }
	ownRank := rank(own)
	nodes := strings.Split(lease.Annotations[servicelb.NodesOfLease], ",")
	before := slices.DeleteFunc(nodes, func(node string) bool {
		other := rank(node)
		return bytes.Compare(other[:], ownRank[:]) >= 0
	})
	return time.Duration(min(len(before), maxTurns))
}
