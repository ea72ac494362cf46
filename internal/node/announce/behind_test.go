package announce

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// held returns version i of a Lease that another host has.
func held(i int64) *coordinationv1.Lease {
	other, now := "other", metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: vipNamespace, Name: vipLease, ResourceVersion: fmt.Sprint(i)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &other, RenewTime: &now},
	}
}

// TestBehind has a host whose watch tells nothing any more, while the holder renews the Lease.
// When the holder dies, the host takes the address in time all the same.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset()
		// The test and the contender both use these.
		var asked, reconnected, version atomic.Int64
		var silent atomic.Bool
		api.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked.Add(1)
			if silent.Load() {
				time.Sleep(lookTimeout)
				return true, nil, context.DeadlineExceeded
			}
			return false, nil, nil
		})
		version.Store(1)
		api.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if silent.Load() {
				return true, nil, context.DeadlineExceeded
			}
			written := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
			written.ResourceVersion = fmt.Sprint(version.Add(1))
			return true, written, api.Tracker().Update(action.GetResource(), written, vipNamespace)
		})
		host := &fakeHost{}
		ctx, cancel := context.WithCancel(t.Context())
		c := New(Config{
			Address: address, Leases: api.CoordinationV1().Leases(vipNamespace), Identity: "this", Host: host,
			Reconnect: func(time.Time) { reconnected.Add(1) }, Log: logrus.WithField("component", "test"),
		})
		lease := held(version.Load())
		if err := api.Tracker().Add(lease); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx)
		}()
		renew := func(times int, told bool) {
			t.Helper()
			for range times {
				lease = held(version.Add(1))
				if err := api.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease, vipNamespace); err != nil {
					t.Fatal(err)
				}
				if told {
					c.See(lease, 0)
				}
				time.Sleep(renewInterval)
				synctest.Wait()
				if host.has() {
					t.Fatal("this host has the address while the holder lives")
				}
			}
		}
		c.See(lease, 0)
		renew(60, true)
		if n := asked.Load(); n > 0 {
			t.Errorf("the API was asked %d times while the watch told everything", n)
		}

		t.Log("the watch is behind")
		renew(60, false)
		if a, r := asked.Load(), reconnected.Load(); a == 0 || r > 0 {
			t.Errorf("the API was asked %d times, and connected to again %d times", a, r)
		}
		time.Sleep(leaseDuration) // the last renewal was renewInterval ago
		synctest.Wait()
		if !host.has() {
			t.Error("the host does not have the address in time")
		}
		time.Sleep(time.Minute)
		if !host.has() {
			t.Error("the host no longer has the address")
		}

		t.Log("the API does not answer")
		silent.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if reconnected.Load() == 0 {
			t.Error("the host kept connections on which the API does not answer")
		}
		if host.has() {
			t.Error("the host has the address without the API")
		}
		cancel()
		<-ended
	})
}

// TestOlder has a watch that tells what the host knows already.
func TestOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Address: address, Log: logrus.WithField("component", "test")})
		c.See(held(7), 0)
		seen := c.seen
		time.Sleep(time.Second)
		c.See(held(6), 0)
		if c.lease.ResourceVersion != "7" || !c.seen.Equal(seen) {
			t.Errorf("the Lease is of version %s", c.lease.ResourceVersion)
		}
		again := held(1)
		again.UID = "another"
		c.See(again, 0)
		if c.lease.UID != "another" {
			t.Error("a Lease that was made anew is ignored")
		}
	})
}
