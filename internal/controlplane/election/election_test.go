package election

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// store has the Lease, like a datastore that all servers share. It refuses
// outdated writes, which the fake clientset by itself does not.
type store struct {
	mu      sync.Mutex
	client  *fake.Clientset
	version int
	// cut are the servers whose requests fail.
	cut map[string]bool
	// ahead is the difference of a server's clock, for servers with a wrong
	// clock.
	ahead map[string]time.Duration
}

func newStore() *store {
	return &store{client: fake.NewClientset(), cut: map[string]bool{}, ahead: map[string]time.Duration{}}
}

func (s *store) cutOff(server string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[server] = cut
}

// clientFor returns the client of one server to the store.
func (s *store) clientFor(server string) *fake.Clientset {
	client := fake.NewClientset()
	client.WatchReactionChain = s.client.WatchReactionChain
	client.ReactionChain = nil
	client.AddReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cut[server] {
			return true, nil, apierrors.NewTimeoutError("the store is stalled", 0)
		}
		if write, ok := action.(clienttesting.CreateAction); ok { // matches updates too
			lease := write.GetObject().(*coordinationv1.Lease).DeepCopy()
			if action.GetVerb() == "update" {
				now, err := s.client.Tracker().Get(leases, leaseNamespace, leaseName)
				if err != nil {
					return true, nil, err
				}
				if now.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
					return true, nil, apierrors.NewConflict(leases.GroupResource(), leaseName, errors.New("changed"))
				}
			}
			s.version++
			lease.ResourceVersion = strconv.Itoa(s.version)
			for _, stamp := range []*metav1.MicroTime{lease.Spec.RenewTime, lease.Spec.AcquireTime} {
				stamp.Time = stamp.Add(s.ahead[server])
			}
			if action.GetVerb() == "update" {
				return true, lease, s.client.Tracker().Update(leases, lease, leaseNamespace)
			}
			return true, lease, s.client.Tracker().Create(leases, lease, leaseNamespace)
		}
		return clienttesting.ObjectReaction(s.client.Tracker())(action)
	})
	return client
}

// server is a server that takes part in the election.
type server struct {
	name  string
	store *store
	// diary records what all servers' loops did.
	diary *diary

	*Election
	stopLoops, stop context.CancelFunc
	ready           atomic.Bool
	loops, ended    chan error
}

type diary struct {
	mu      sync.Mutex
	began   time.Time
	entries []string
	leading map[string]bool
	overlap bool
}

func (d *diary) note(server, what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leading[server] = what == "leads"
	if what == "leads" && len(d.leaders()) > 1 {
		d.overlap = true
	}
	d.entries = append(d.entries, server+" "+what)
}

func (d *diary) leaders() (all []string) {
	for server, leads := range d.leading {
		if leads {
			all = append(all, server)
		}
	}
	slices.Sort(all)
	return all
}

// Lead implements Loops. The loops take a second to end.
func (s *server) Lead(ctx context.Context, ready func()) error {
	s.diary.note(s.name, "leads")
	ready()
	<-ctx.Done()
	time.Sleep(time.Second)
	s.diary.note(s.name, "ended")
	return nil
}

func start(name string, store *store, diary *diary) *server {
	s := &server{name: name, store: store, diary: diary, Election: New(Config{Identity: name}), loops: make(chan error, 1), ended: make(chan error, 1)}
	s.locks, s.watches = store.clientFor(name), store.clientFor("")
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() { s.ended <- s.Run(ctx, func() {}) }()
	loops, stopLoops := context.WithCancel(context.Background())
	s.stopLoops = stopLoops
	go func() { s.loops <- s.RunLoops(loops, s, func() { s.ready.Store(true) }) }()
	return s
}

// shutDown ends the loops before the election, as component.Group does.
func (s *server) shutDown(t *testing.T) {
	t.Helper()
	s.stopLoops()
	if err := <-s.loops; err != nil {
		t.Errorf("loops of %s ended with %v", s.name, err)
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Errorf("election of %s ended with %v", s.name, err)
	}
}

// crash ends a server without releasing the Lease.
func (s *server) crash(t *testing.T) {
	s.store.cutOff(s.name, true)
	s.shutDown(t)
	s.store.cutOff(s.name, false)
}

func newDiary() *diary { return &diary{began: time.Now(), leading: map[string]bool{}} }

// wait lets time pass, and checks which server leads then.
func (d *diary) wait(t *testing.T, long time.Duration, leaders ...string) {
	t.Helper()
	time.Sleep(long)
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.leaders(), leaders) {
		t.Errorf("%v after the start %v lead, want %v: %s", time.Since(d.began), d.leaders(), leaders, strings.Join(d.entries, ", "))
	}
	if d.overlap {
		t.Errorf("two led at once: %s", strings.Join(d.entries, ", "))
	}
}

func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		a := start("a", store, diary)
		diary.wait(t, time.Second, "a")
		b, c := start("b", store, diary), start("c", store, diary)
		diary.wait(t, time.Minute, "a")
		if !b.ready.Load() || !c.ready.Load() {
			t.Error("a server that is not elected is not ready, want it ready")
		}
		// After an orderly stop another server leads at once, without waiting for
		// its next attempt.
		a.shutDown(t)
		synctest.Wait()
		if d := diary.leaders(); len(d) != 1 {
			t.Fatalf("%v lead right after the end of a", d)
		}
		if diary.leading["c"] {
			b, c = c, b
		}
		diary.wait(t, time.Minute, b.name)
		// After a crash another server leads within 20 s.
		b.crash(t)
		diary.wait(t, 20*time.Second, c.name)
		c.shutDown(t)
	})
}

// TestComeBack restarts a server that crashed: it need not wait until its own
// Lease expires.
func TestComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		a := start("a", store, diary)
		diary.wait(t, time.Minute, "a")
		a.crash(t)
		a = start("a", store, diary)
		synctest.Wait()
		diary.wait(t, 0, "a")
		a.shutDown(t)
	})
}

// TestLoss stalls one server's store. Its loops end before another server's
// begin, and run again when it is elected again.
func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		a := start("a", store, diary)
		diary.wait(t, time.Minute, "a")
		store.cutOff("a", true)
		diary.wait(t, 5*time.Second, "a")
		diary.wait(t, 8*time.Second) // it gives up after at most 11 s, and the loops take a second
		b := start("b", store, diary)
		diary.wait(t, 20*time.Second, "b")
		store.cutOff("a", false)
		diary.wait(t, time.Minute, "b")
		b.shutDown(t)
		diary.wait(t, 0, "a")
		// Without other servers it wins again as soon as the store answers.
		store.cutOff("a", true)
		diary.wait(t, time.Minute)
		store.cutOff("a", false)
		diary.wait(t, 3*time.Second, "a")
		a.shutDown(t)
	})
}

// TestClockSkew has servers whose clocks differ by hours. The times that another
// server writes must not matter, only when they were seen.
func TestClockSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		store.ahead["a"], store.ahead["b"] = time.Hour, -time.Hour
		a := start("a", store, diary)
		diary.wait(t, time.Second, "a")
		b := start("b", store, diary)
		// For b, a's renewals are an hour in the future. For a, b's renewals are
		// long past.
		diary.wait(t, time.Minute, "a")
		a.crash(t)
		diary.wait(t, 20*time.Second, "b")
		a = start("a", store, diary)
		diary.wait(t, time.Minute, "b")
		b.shutDown(t)
		synctest.Wait()
		diary.wait(t, 0, "a")
		a.shutDown(t)
	})
}

// TestStolen has somebody else write the Lease.
func TestStolen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		a := start("a", store, diary)
		diary.wait(t, time.Minute, "a")
		thief := store.clientFor("thief").CoordinationV1().Leases(leaseNamespace)
		lease, err := thief.Get(t.Context(), leaseName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		holder, now := "thief", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, &now
		if _, err := thief.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		diary.wait(t, 13*time.Second)
		diary.wait(t, 10*time.Second, "a")
		a.shutDown(t)
	})
}

// failing are loops that return an error.
type failing struct{ lead, follow error }

func (f failing) Lead(ctx context.Context, _ func()) error {
	if f.lead == nil {
		<-ctx.Done()
	}
	return f.lead
}

func (f failing) Follow(ctx context.Context) error {
	if f.follow == nil {
		<-ctx.Done()
	}
	return f.follow
}

// TestFailure wants the error of loops that fail.
func TestFailure(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		election *Election
		loops    failing
	}{
		"without election": {nil, failing{lead: boom}},
		"leading":          {New(Config{Identity: "a"}), failing{lead: boom}},
		"following":        {New(Config{Identity: "a"}), failing{follow: boom}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if e := test.election; e != nil && test.loops.lead != nil {
					e.begin(ctx)
				}
				if err := test.election.RunLoops(ctx, test.loops, func() {}); !errors.Is(err, boom) {
					t.Errorf("RunLoops() error is %v", err)
				}
			})
		})
	}
}

// TestOverdue asks followers whether the leader seems to be gone.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, diary := newStore(), newDiary()
		a := start("a", store, diary)
		diary.wait(t, time.Second, "a")
		b := start("b", store, diary)
		check := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got, err := b.Overdue(t.Context()); got != want || err != nil {
				t.Errorf("%v after the start Overdue is %t: %v", time.Since(diary.began), got, err)
			}
			if gone, err := a.Overdue(t.Context()); gone || err != nil {
				t.Errorf("the leader takes itself for gone: %t %v", gone, err)
			}
		}
		check(time.Minute, false)
		store.cutOff("a", true)
		check(overdue-2*time.Second, false)
		check(3*time.Second, true)
		t.Log("the leader is back")
		store.cutOff("a", false)
		check(2*time.Second, false)
		t.Log("the watch is behind, or broken")
		b.mu.Lock()
		b.seen, b.renewed = time.Now().Add(-time.Minute), metav1.MicroTime{}
		b.mu.Unlock()
		check(0, false)
		a.shutDown(t)
		check(time.Minute, false) // b leads
		b.shutDown(t)
	})
}
