// Package lists answers long lists in parts, so that no list is in memory as a
// whole. The datastores read pages with it, and their clients in this process get
// the parts through it (RangeStream of etcd's API).
package lists

import (
	"cmp"
	"context"

	"github.com/k3s-io/kine/pkg/server"
)

// page is how many keys are read at a time.
const page = 500

// List is the method List of a backend.
type List func(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error)

// Stream reads a list in pages, all at the same revision. It is the method ListStream
// of a backend that has List. No page stays open while the caller takes its keys, so
// a slow caller holds up nobody.
func Stream(ctx context.Context, list List, key, end string, limit, revision int64, keysOnly bool) server.ListResult {
	if key == "" && end == "" {
		end = "\x00" // the same keys, but a next page can begin behind one of them
	}
	if limit <= 0 {
		limit = -1
	}
	next := func() int64 {
		if limit < 0 {
			return page
		}
		return min(limit, page)
	}
	asked := next()
	current, kvs, err := list(ctx, key, end, asked, revision, keysOnly)
	revision = cmp.Or(revision, current)
	out, failed := make(chan *server.KeyValue), make(chan error, 1)
	go func() {
		defer close(failed)
		defer close(out)
		for err == nil {
			for _, kv := range kvs {
				select {
				case out <- kv:
				case <-ctx.Done():
					failed <- ctx.Err()
					return
				}
			}
			if limit > 0 {
				limit -= int64(len(kvs))
			}
			if int64(len(kvs)) < asked || limit == 0 {
				return
			}
			key, asked = kvs[len(kvs)-1].Key+"\x00", next()
			_, kvs, err = list(ctx, key, end, asked, revision, keysOnly)
		}
		failed <- err
	}()
	return server.ListResult{CurrentRevision: current, KVc: out, Errorc: failed}
}
