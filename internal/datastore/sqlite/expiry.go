package sqlite

import (
	"container/heap"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// retryExpiry is the pause before a failed deletion of an expired key is
// repeated. A full disk stays full for longer than that.
const retryExpiry = 10 * time.Second

// maxLease is etcd's limit in seconds, 285 years (MaxLeaseTTL in
// go.etcd.io/etcd/server/v3/lease/lessor.go). A time.Duration can hold little more.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/lease/lessor.go MaxLeaseTTL
const maxLease = 9_000_000_000

// leases knows when the leases of keys end. As with kine, a lease is a lifetime
// in seconds, which begins anew when kedge starts.
type leases struct {
	byKey map[string]*lease
	queue leaseQueue
}

type lease struct {
	key      string
	revision int64
	end      time.Time
	index    int // in the queue
}

// note records that kv is the last change of its key.
func (l *leases) note(kv *server.KeyValue, deleted bool) {
	known := l.byKey[kv.Key]
	switch {
	case deleted || kv.Lease <= 0:
		if known != nil {
			heap.Remove(&l.queue, known.index)
			delete(l.byKey, kv.Key)
		}
		return
	case known == nil:
		known = &lease{key: kv.Key}
		heap.Push(&l.queue, known)
		l.byKey[kv.Key] = known
	}
	known.revision, known.end = kv.ModRevision, time.Now().Add(time.Duration(min(kv.Lease, maxLease))*time.Second)
	heap.Fix(&l.queue, known.index)
}

// ended removes the leases that have ended, at most maxBatch, and returns the
// deletions of their keys.
func (l *leases) ended(now time.Time) (changes []*change) {
	for len(l.queue) > 0 && len(changes) < maxBatch && !l.queue[0].end.After(now) {
		first := heap.Pop(&l.queue).(*lease)
		delete(l.byKey, first.key)
		changes = append(changes, &change{kind: kindExpire, key: first.key, revision: first.revision})
	}
	return changes
}

// retry restores the lease of a deletion that failed.
func (l *leases) retry(c *change) {
	if c.kind == kindExpire && l.byKey[c.key] == nil {
		again := &lease{key: c.key, revision: c.revision, end: time.Now().Add(retryExpiry)}
		heap.Push(&l.queue, again)
		l.byKey[c.key] = again
	}
}

// next returns when the first lease ends. ok is false if there are no leases.
func (l *leases) next() (end time.Time, ok bool) {
	if len(l.queue) == 0 {
		return time.Time{}, false
	}
	return l.queue[0].end, true
}

// leaseQueue is a heap.Interface with the lease that ends first on top.
type leaseQueue []*lease

func (q leaseQueue) Len() int           { return len(q) }
func (q leaseQueue) Less(i, j int) bool { return q[i].end.Before(q[j].end) }
func (q leaseQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *leaseQueue) Push(x any) {
	x.(*lease).index = len(*q)
	*q = append(*q, x.(*lease))
}
func (q *leaseQueue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}
