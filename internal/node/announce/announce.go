// Package announce makes one of several hosts answer at an address. The hosts contend for a
// Lease. Its holder puts the address on the interface that is in the address's network, and
// tells the neighbors by ARP or NDP. The loadbalancer package uses it for addresses of
// pools, and the server package for the address of the control plane (--vip).
//
// The address has a lifetime in the kernel, which each renewal of the Lease extends. So it
// vanishes by itself, before another host may take the Lease, if the process is killed or
// can no longer renew the Lease.
//
// The API decides who has the Lease. The clocks of hosts do not matter: a host counts from
// the moment when it saw the last renewal, as client-go's leader election does.
//
// A host that was cut off must not wait for its watch, which comes back late: TCP repeats
// what was lost after longer and longer pauses, and the informer pauses between its
// attempts, too. So a host that misses renewals asks the API itself, on a new connection if
// the old one does not answer.
package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// These times make another host answer less than 5 s after the holder has died: it takes
// the Lease leaseDuration after it saw the last renewal, and the holder renews the Lease
// every renewInterval. The holder can miss the renewals of almost three seconds.
//
// The kernel removes an address up to a second after the end of its lifetime, which is in
// whole seconds (net/ipv4/devinet.c, check_lifetime). So the lifetime is shorter than
// leaseDuration by a second.
const (
	leaseDuration  = 4 * time.Second
	renewInterval  = time.Second
	retryInterval  = 250 * time.Millisecond
	requestTimeout = 2 * time.Second
	kernelSlack    = time.Second
	// silence is how long the watch may tell nothing before a host asks the API itself. If
	// the answer is news, the watch is behind, and the host asks every lookInterval until
	// the watch tells something.
	silence      = 2 * time.Second
	lookInterval = 500 * time.Millisecond
	lookTimeout  = time.Second
	// unfitInterval is the wait after the host could not take the address.
	unfitInterval = 10 * time.Second
	// handover is how long a host that has to leave the address to another one still has it.
	// By then, answers that were under way have reached their clients. It is shorter than the
	// address's lifetime in the kernel when it begins.
	handover = time.Second
)

// announcements is how often the neighbors are told of a new holder, at the first renewals:
// a packet may get lost.
const announcements = 3

// ErrUnfit says that the host has no interface for an address, or has the address anyway.
var ErrUnfit = errors.New("the address does not fit this host")

// Host puts addresses on a host's interfaces. Linux is the real one.
type Host interface {
	// Place finds the interface for an address. It fails with ErrUnfit if there is none.
	Place(address netip.Addr) (Place, error)
}

// Place is where a host has an address.
type Place interface {
	// Put gives the interface the address for a lifetime, or extends that.
	Put(lifetime time.Duration) error
	// Tell tells the neighbors that the address is here.
	Tell() error
	// Remove takes the address off the interface. It does nothing if the address is gone.
	Remove() error
	// String names the interface.
	String() string
}

// Config is what a Contender needs.
type Config struct {
	Address netip.Addr
	// Leases may get and update the Lease.
	Leases coordinationclient.LeaseInterface
	// Identity is this host's, and stays the same after a restart.
	Identity string
	Host     Host
	// Reconnect closes the connections to the API, because a request that began at a time
	// got no answer. It is nil if the API is in this process.
	Reconnect func(began time.Time)
	Log       *logrus.Entry
}

// Contender contends for the Lease of one address.
type Contender struct {
	cfg Config
	log *logrus.Entry

	// changed receives when there is a newer Lease.
	changed loop.Changes
	mu      sync.Mutex
	// lease is the newest that was seen, and seen is when its last renewal was seen.
	lease *coordinationv1.Lease
	seen  time.Time
	// heard is when the API last told which Lease is the newest. behind is true if the
	// watch did not tell it.
	heard  time.Time
	behind bool
	// delay is how long this host lets others go first.
	delay time.Duration
	// retire is when this host leaves the address to another one, or zero.
	retire time.Time

	// The following belong to Run. place is nil while this host does not have the address.
	place   Place
	until   time.Time // the end of the address's lifetime
	renewed time.Time
	told    int
	// unfit is when the host could not take the address.
	unfit  time.Time
	failed string // the last failure in the log
}

// New makes a Contender.
func New(cfg Config) *Contender {
	return &Contender{cfg: cfg, log: cfg.Log.WithField("address", cfg.Address), changed: loop.NewChanges()}
}

// See takes a version of the Lease that the caller has watched. delay is how long this host
// lets others go first when the Lease is free. It spreads addresses over hosts.
func (c *Contender) See(lease *coordinationv1.Lease, delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay, c.behind, c.retire = delay, false, time.Time{}
	c.take(lease)
	c.changed.Notify()
}

// Retire makes the host leave the address to another one: it no longer may have it. New
// connections must not come here any more when it is called, because those that are open
// when the address goes are lost. Run then returns. See takes it back as long as Run has not
// returned.
func (c *Contender) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retire.IsZero() {
		c.retire = time.Now().Add(handover)
		c.changed.Notify()
	}
}

// take keeps a Lease if it is not older than the one it has. It tells whether it is newer.
// The caller has locked mu.
func (c *Contender) take(lease *coordinationv1.Lease) (newer bool) {
	c.heard = time.Now()
	if c.lease != nil && c.lease.UID == lease.UID {
		// A watch that was behind tells what look has already overtaken.
		order, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, c.lease.ResourceVersion)
		if err == nil && order <= 0 {
			return false
		}
	}
	if c.lease == nil || holder(c.lease) != holder(lease) || !renewal(c.lease).Equal(renewal(lease)) {
		c.seen = time.Now()
	}
	c.lease = lease
	return true
}

// look asks the API for the newest Lease.
func (c *Contender) look(ctx context.Context, name string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	newest, err := c.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if c.cfg.Reconnect != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.cfg.Reconnect(began)
		}
		return fmt.Errorf("read the Lease: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.take(newest) {
		c.behind = true
	}
	return nil
}

func holder(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

func renewal(lease *coordinationv1.Lease) time.Time {
	return ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
}

// Run contends until ctx ends, or Retire was called. At the end it takes the address off the
// host and releases the Lease.
func (c *Contender) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.leave(context.WithoutCancel(ctx))
			return
		case <-c.changed:
		case <-timer.C:
		}
		c.mu.Lock()
		retire := c.retire
		c.mu.Unlock()
		switch wait := time.Until(retire); {
		case retire.IsZero():
			timer.Reset(c.step(ctx))
		case c.place != nil && wait > 0:
			timer.Reset(wait)
		default:
			c.leave(context.WithoutCancel(ctx))
			return
		}
	}
}

// step does what is due, and returns when to look again at the latest.
func (c *Contender) step(ctx context.Context) time.Duration {
	c.mu.Lock()
	lease, seen, delay, look := c.lease, c.seen, c.delay, c.heard.Add(silence)
	if c.behind {
		look = c.heard.Add(lookInterval)
	}
	c.mu.Unlock()
	if lease == nil {
		return unfitInterval
	}
	due := c.renewed.Add(renewInterval)
	switch holder(lease) {
	case c.cfg.Identity:
	case "":
		c.drop()
		due, look = seen.Add(delay), time.Time{}
	default:
		c.drop()
		due = seen.Add(leaseDuration + delay)
	}
	if again := c.unfit.Add(unfitInterval); c.place == nil && again.After(due) {
		due, look = again, time.Time{}
	}
	if !look.IsZero() && time.Until(look) <= 0 {
		if err := c.look(ctx, lease.Name); err != nil {
			if ctx.Err() == nil {
				c.fail(err)
			}
			return retryInterval
		}
		return 0
	}
	if wait := time.Until(due); wait > 0 {
		if !look.IsZero() {
			wait = min(wait, time.Until(look))
		}
		return wait
	}
	if err := c.hold(ctx, lease); err != nil {
		if ctx.Err() == nil {
			c.fail(err)
		}
		return retryInterval
	}
	return time.Until(c.renewed.Add(renewInterval))
}

// fail logs a failure once.
func (c *Contender) fail(err error) {
	if apierrors.IsConflict(err) || err.Error() == c.failed {
		return
	}
	c.failed = err.Error()
	c.log.Warnf("Cannot hold the address: %v", err)
}

// hold takes or renews the Lease, and then puts the address on the host.
func (c *Contender) hold(ctx context.Context, lease *coordinationv1.Lease) error {
	place := c.place
	if place == nil {
		var err error
		if place, err = c.cfg.Host.Place(c.cfg.Address); err != nil {
			c.unfit = time.Now()
			if holder(lease) == c.cfg.Identity {
				c.release(ctx, lease)
			}
			return err
		}
	}
	began := time.Now()
	if err := c.renew(ctx, lease); err != nil {
		return err
	}
	// The lifetime counts from before the request: others may count from then on.
	lifetime := (leaseDuration - kernelSlack - time.Since(began)).Round(time.Second)
	if lifetime < time.Second {
		return errors.New("the API takes too long to renew the Lease")
	}
	if err := place.Put(lifetime); err != nil {
		c.drop()
		return err
	}
	if c.place == nil || time.Now().After(c.until) {
		c.log.Infof("This host has the address, on %s", place)
		c.told = 0
	}
	c.place, c.until, c.renewed, c.failed = place, time.Now().Add(lifetime), began, ""
	if c.told < announcements {
		c.told++
		if err := place.Tell(); err != nil {
			c.log.Warnf("Cannot tell the neighbors of the address: %v", err)
		}
	}
	return nil
}

// renew writes this host into the Lease as its holder.
func (c *Contender) renew(ctx context.Context, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	updated := lease.DeepCopy()
	now := metav1.NowMicro()
	if holder(lease) != c.cfg.Identity {
		updated.Spec.HolderIdentity = &c.cfg.Identity
		updated.Spec.AcquireTime = &now
		updated.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1)
	}
	updated.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration / time.Second))
	updated.Spec.RenewTime = &now
	written, err := c.cfg.Leases.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsConflict(err) {
			_ = c.look(ctx, lease.Name) // The next step looks again.
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(written)
	return nil
}

// drop takes the address off the host.
func (c *Contender) drop() {
	if c.place == nil {
		return
	}
	if err := c.place.Remove(); err != nil {
		c.log.Warnf("Cannot remove the address, which vanishes by itself within %s: %v", leaseDuration, err)
	}
	c.log.Infof("This host no longer has the address, on %s", c.place)
	c.place = nil
}

// leave ends contending.
func (c *Contender) leave(ctx context.Context) {
	c.drop()
	c.mu.Lock()
	lease := c.lease
	c.mu.Unlock()
	if lease != nil && holder(lease) == c.cfg.Identity {
		c.release(ctx, lease)
	}
}

// release lets others take the Lease at once.
func (c *Contender) release(ctx context.Context, lease *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The controller may have changed the Lease since.
	for range 3 {
		released := lease.DeepCopy()
		now := metav1.NowMicro()
		released.Spec.HolderIdentity, released.Spec.RenewTime = ptr.To(""), &now
		written, err := c.cfg.Leases.Update(ctx, released, metav1.UpdateOptions{})
		if err == nil {
			c.mu.Lock()
			c.take(written)
			c.mu.Unlock()
			return
		}
		if apierrors.IsConflict(err) {
			lease, err = c.cfg.Leases.Get(ctx, lease.Name, metav1.GetOptions{})
		}
		if err != nil || holder(lease) != c.cfg.Identity {
			return // it is another's, is gone, or expires
		}
	}
}
