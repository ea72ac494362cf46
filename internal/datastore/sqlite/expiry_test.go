package sqlite

import (
	"math"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// TestLongLease gives a key a lease that is longer than a time.Duration can be.
func TestLongLease(t *testing.T) {
	for _, seconds := range []int64{3600, maxLease, 10_000_000_000, math.MaxInt64} {
		l := leases{byKey: map[string]*lease{}}
		l.note(&server.KeyValue{Key: "a", Lease: seconds}, false)
		if changes := l.ended(time.Now()); len(changes) > 0 {
			t.Errorf("a lease of %d seconds has ended", seconds)
		}
	}
}
