package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var address = netip.MustParseAddr("192.0.2.100")

// fakeHost is a host whose kernel removes an address at the end of its lifetime.
type fakeHost struct {
	mu    sync.Mutex
	until time.Time
	told  int
	unfit bool
}

func (h *fakeHost) Place(netip.Addr) (Place, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unfit {
		return nil, ErrUnfit
	}
	return h, nil
}

func (h *fakeHost) setUnfit(unfit bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unfit = unfit
}

func (h *fakeHost) Put(lifetime time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Now().Add(lifetime)
	return nil
}

func (h *fakeHost) Tell() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told++
	return nil
}

func (h *fakeHost) Remove() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Time{}
	return nil
}

func (*fakeHost) String() string { return "eth0" }

func (h *fakeHost) has() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.until)
}

// rivals are hosts that contend for one address.
type rivals struct {
	*testing.T
	api   *fake.Clientset
	hosts []*fakeHost
	stops []func()
	both  bool
	mu    sync.Mutex
	// down are the hosts whose renewals the API refuses.
	down []string
}

// contend runs do beside hosts that contend, in a bubble of synctest.
func contend(t *testing.T, count int, do func(r *rivals)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rivals{T: t, api: fake.NewClientset()}
		// The fake API has no versions, so that no update conflicts.
		versions := 0
		r.api.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			current, err := r.api.Tracker().Get(action.GetResource(), lease.Namespace, lease.Name)
			if err != nil {
				return true, nil, err
			}
			if current.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("it is newer"))
			}
			if slices.Contains(r.down, holder(lease)) {
				return true, nil, apierrors.NewInternalError(errors.New("the API is away"))
			}
			versions++
			written := lease.DeepCopy()
			written.ResourceVersion = fmt.Sprint(versions)
			return true, written, r.api.Tracker().Update(action.GetResource(), written, lease.Namespace)
		})
		var running sync.WaitGroup
		for i := range count {
			host := &fakeHost{}
			ctx, stop := context.WithCancel(t.Context())
			r.hosts, r.stops = append(r.hosts, host), append(r.stops, stop)
			running.Go(func() {
				runVIP(ctx, r.api, Config{
					Address: address, Leases: r.api.CoordinationV1().Leases(vipNamespace), Identity: fmt.Sprint("host-", i),
					Host: host, Log: logrus.WithField("component", "test"),
				})
			})
		}
		do(r)
		for _, stop := range r.stops {
			stop()
		}
		running.Wait()
	})
}

// pass lets time pass, and makes sure that never two hosts have the address.
func (r *rivals) pass(duration time.Duration) {
	r.Helper()
	for range duration / (50 * time.Millisecond) {
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		count := 0
		for _, host := range r.hosts {
			if host.has() {
				count++
			}
		}
		if count > 1 && !r.both {
			r.both = true
			r.Errorf("%d hosts have the address", count)
		}
	}
}

// refuse makes the API refuse the renewals of some hosts.
func (r *rivals) refuse(hosts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = hosts
}

// one returns the number of the host that has the address, or -1.
func (r *rivals) one() int {
	for i, host := range r.hosts {
		if host.has() {
			return i
		}
	}
	return -1
}

func TestFailover(t *testing.T) {
	contend(t, 3, func(r *rivals) {
		r.pass(3 * time.Second)
		first := r.one()
		if first < 0 {
			t.Fatal("nobody has the address")
		}
		if told := r.hosts[first].told; told != announcements {
			t.Errorf("the neighbors were told %d times", told)
		}
		r.pass(time.Minute)
		if r.one() != first {
			t.Errorf("the address moved from host %d to host %d", first, r.one())
		}

		t.Log("the holder cannot reach the API, and another host takes the address")
		r.refuse(fmt.Sprint("host-", first))
		r.pass(leaseDuration + time.Second)
		second := r.one()
		if second < 0 || second == first {
			t.Fatalf("host %d has the address", second)
		}

		t.Log("the earlier holder is back, and takes nothing")
		r.refuse()
		r.pass(time.Minute)
		if r.one() != second {
			t.Errorf("host %d has the address", r.one())
		}

		t.Log("the holder stops in order, and another host has the address at once")
		r.stops[second]()
		synctest.Wait()
		if r.hosts[second].has() {
			t.Error("the host that has stopped still has the address")
		}
		r.pass(time.Second)
		if now := r.one(); now < 0 || now == second {
			t.Errorf("host %d has the address", now)
		}

		t.Log("somebody deletes the Lease")
		if err := r.api.CoordinationV1().Leases(vipNamespace).Delete(t.Context(), vipLease, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.pass(leaseDuration + 2*time.Second)
		if r.one() < 0 {
			t.Error("nobody has the address")
		}
	})
}

// TestOutage has an API that nobody reaches. The address vanishes everywhere.
func TestOutage(t *testing.T) {
	contend(t, 2, func(r *rivals) {
		r.pass(3 * time.Second)
		r.refuse("host-0", "host-1")
		r.pass(leaseDuration)
		if r.one() >= 0 {
			t.Error("a host still has the address")
		}
		r.refuse()
		r.pass(leaseDuration)
		if r.one() < 0 {
			t.Error("nobody has the address again")
		}
	})
}

// TestUnfit has a host without a network for the address.
func TestUnfit(t *testing.T) {
	contend(t, 2, func(r *rivals) {
		r.hosts[0].setUnfit(true)
		r.pass(20 * time.Second)
		if r.one() != 1 {
			t.Errorf("host %d has the address", r.one())
		}
		r.stops[1]()
		r.pass(time.Minute)
		r.hosts[0].setUnfit(false)
		r.pass(unfitInterval + time.Second)
		if r.one() != 0 {
			t.Errorf("host %d has the address", r.one())
		}
	})
}

// TestPackets compares with packets that are written by hand, after RFC 826 and RFC 4861.
func TestPackets(t *testing.T) {
	hardware := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	want := []byte{0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 7, 192, 0, 2, 100, 2, 0, 0, 0, 0, 7, 192, 0, 2, 100}
	if got := arpPacket(arpReply, hardware, address); !bytes.Equal(got, want) {
		t.Errorf("the answer is %v", got)
	}
	copy(want[18:], make([]byte, 6))
	want[7] = 1
	if got := arpPacket(arpRequest, hardware, address); !bytes.Equal(got, want) {
		t.Errorf("the request is %v", got)
	}
	got := advertisement(hardware, netip.MustParseAddr("fd00::1"))
	wantNDP := append(append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, netip.MustParseAddr("fd00::1").AsSlice()...), 2, 1, 2, 0, 0, 0, 0, 7)
	if !bytes.Equal(got, wantNDP) {
		t.Errorf("the advertisement is %v", got)
	}
}
