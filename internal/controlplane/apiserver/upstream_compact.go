// Follows k8s.io/apiserver v0.37.2, pkg/storage/etcd3/compact.go.

package apiserver

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

// compactor compacts revisions that are older than an interval, and tells watch caches
// the last compacted one. Upstream's compactor keeps that revision in a key of the
// datastore too, so that several API servers agree. This datastore has one.
type compactor struct{ revision atomic.Int64 }

// CompactRevision implements etcd3.Compactor.
func (c *compactor) CompactRevision() int64 { return c.revision.Load() }

// run compacts the datastore until ctx ends.
//
//upstream:follows k8s.io/apiserver/pkg/storage/etcd3/compact.go compactor.runCompactLoop Compact
func (c *compactor) run(ctx context.Context, client *clientv3.Client, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for old := int64(0); ; {
		now, err := client.Get(ctx, "compact_rev_key")
		if err == nil && old > 0 && old < now.Header.Revision {
			if _, err = client.Compact(ctx, old); err == nil {
				c.revision.Store(old)
			}
		}
		if err == nil {
			old = now.Header.Revision
		} else if ctx.Err() == nil {
			klog.ErrorS(err, "Failed to compact the datastore")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
