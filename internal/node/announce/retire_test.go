package announce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestRetire has a holder that must leave the address. It keeps the address for the time of the
// handover, releases the Lease, and ends. If it may have the address again before that, it stays.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l"}}
		leases := fake.NewClientset(lease).CoordinationV1().Leases("n")
		host := &fakeHost{}
		c := New(Config{Address: address, Leases: leases, Identity: "a", Host: host, Log: logrus.WithField("component", "test")})
		ended := make(chan struct{})
		go func() {
			c.Run(t.Context())
			close(ended)
		}()
		newest := func() *coordinationv1.Lease {
			t.Helper()
			now, err := leases.Get(t.Context(), "l", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		c.See(newest(), 0)
		synctest.Wait()
		if !host.has() || holder(newest()) != "a" {
			t.Fatalf("the holder is %q", holder(newest()))
		}

		c.Retire()
		time.Sleep(handover / 2)
		c.See(newest(), 0)
		time.Sleep(2 * handover)
		if !host.has() {
			t.Error("the host may have the address again, and has left it")
		}

		c.Retire()
		time.Sleep(handover / 2)
		if !host.has() || holder(newest()) != "a" {
			t.Error("the host has left the address before the end of the handover")
		}
		time.Sleep(handover)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("Run has not returned")
		}
		if host.has() || holder(newest()) != "" {
			t.Errorf("after the handover the holder is %q", holder(newest()))
		}
	})
}
