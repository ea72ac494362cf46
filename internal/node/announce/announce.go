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
package announce

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
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
	// unfitInterval is the wait after the host could not take the address.
	unfitInterval = 10 * time.Second
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
	Log      *logrus.Entry
}

// Contender contends for the Lease of one address.
type Contender struct {
	cfg Config
	log *logrus.Entry

	// changed receives when there is a newer Lease.
	changed chan struct{}
	mu      sync.Mutex
	// lease is the newest that was seen, and seen is when its last renewal was seen.
	lease *coordinationv1.Lease
	seen  time.Time
	// delay is how long this host lets others go first.
	delay time.Duration

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
	return &Contender{cfg: cfg, log: cfg.Log.WithField("address", cfg.Address), changed: make(chan struct{}, 1)}
}

// See takes a version of the Lease that the caller has watched. delay is how long this host
// lets others go first when the Lease is free. It spreads addresses over hosts.
func (c *Contender) See(lease *coordinationv1.Lease, delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = delay
	c.take(lease)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// take keeps a Lease. The caller has locked mu.
func (c *Contender) take(lease *coordinationv1.Lease) {
	if c.lease == nil || holder(c.lease) != holder(lease) || !renewal(c.lease).Equal(renewal(lease)) {
		c.seen = time.Now()
	}
	c.lease = lease
}

func holder(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

func renewal(lease *coordinationv1.Lease) time.Time {
	return ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
}

// Run contends until ctx ends. At the end it takes the address off the host and releases
// the Lease.
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
		timer.Reset(c.step(ctx))
	}
}

// step does what is due, and returns when to look again at the latest.
func (c *Contender) step(ctx context.Context) time.Duration {
	c.mu.Lock()
	lease, seen, delay := c.lease, c.seen, c.delay
	c.mu.Unlock()
	if lease == nil {
		return unfitInterval
	}
	due := c.renewed.Add(renewInterval)
	switch holder(lease) {
	case c.cfg.Identity:
	case "":
		c.drop()
		due = seen.Add(delay)
	default:
		c.drop()
		due = seen.Add(leaseDuration + delay)
	}
	if again := c.unfit.Add(unfitInterval); c.place == nil && again.After(due) {
		due = again
	}
	if wait := time.Until(due); wait > 0 {
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
	if apierrors.IsConflict(err) {
		// The watch may be behind, or broken.
		if newest, err := c.cfg.Leases.Get(ctx, lease.Name, metav1.GetOptions{}); err == nil {
			written = newest
		}
	}
	if written != nil && written.Name != "" {
		c.mu.Lock()
		c.take(written)
		c.mu.Unlock()
	}
	return err
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
