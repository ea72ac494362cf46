package lean

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/apiserver/pkg/storage/cacher/store"
)

const (
	// remembered is how long watch caches remember changes. A client that comes back later lists
	// all objects again. Others are never so far behind: they get a bookmark every minute.
	remembered = 3 * time.Minute
	// forgetInterval is how often they forget what is older.
	forgetInterval = time.Minute
	// leastCapacity is that of a new watch cache.
	leastCapacity = 100
)

// histories make watch caches forget changes that are long ago. Without them, a watch cache
// forgets a change only when another one of the same kind takes its place. Each change has
// the object before and after it. So all objects of a large namespace that was deleted would
// stay in memory, until as many others have changed. A watch cache also keeps what all objects were
// after each change, until the datastore is compacted, which is up to ten minutes later.
type histories struct {
	mu  sync.Mutex
	all map[*history]bool
}

// add adds the history of a watch cache. The function that it returns takes it out.
func (h *histories) add(c *cacher.Cacher, resource schema.GroupResource) (remove func(), err error) {
	added, err := historyOf(c, resource)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[added] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, added)
	}, nil
}

// run lets the histories forget until ctx ends.
func (h *histories) run(ctx context.Context) {
	tick := time.NewTicker(forgetInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h.mu.Lock()
			for one := range h.all {
				one.forget(now.Add(-remembered))
			}
			h.mu.Unlock()
		}
	}
}

// history is the ring of changes in a watch cache. Upstream has no function for what forget
// does, so this package reaches for the private fields.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/cacher.go Cacher
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/watch_cache.go watchCache watchCacheEvent watchCache.processEvent watchCache.getAllEventsSinceLocked
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/watch_cache_history.go watchCacheHistory watchCacheHistory.updateCache watchCacheHistory.resizeCacheLocked watchCacheHistory.doCacheResizeLocked watchCacheHistory.ResetLocked watchCacheHistory.GetIntervalLocked watchCacheHistory.OldestResourceVersionLocked
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/watch_cache_interval.go watchCacheInterval historyCacheIntervalSource
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/store/watch_cache_storage.go WatchCacheStorage.CompactSnapshotsLocked WatchCacheStorage.UpdateStoreLocked WatchCacheStorage.GetExactSnapshotLocked WatchCacheStorage.CanServeExactRV
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/delegator.go CacheDelegator.GetList
type history struct {
	resource schema.GroupResource
	mu       *sync.RWMutex
	// changes is the ring. Those with the numbers from start to before end are in it, each in
	// the place of its number modulo capacity.
	changes              reflect.Value
	capacity, start, end *int
	// removed says that the ring no longer has all changes since the last list.
	removed *bool
	// objects also has all objects as they were after each change, to answer lists of then.
	objects **store.WatchCacheStorage
}

func historyOf(c *cacher.Cacher, resource schema.GroupResource) (*history, error) {
	cache := reflect.ValueOf(c).Elem().FieldByName("watchCache")
	if cache.Kind() != reflect.Pointer || cache.IsNil() {
		return nil, fmt.Errorf("find history: a %T has no watchCache", c)
	}
	cache = cache.Elem()
	changes := cache.FieldByName("history")
	if changes.Kind() != reflect.Pointer || changes.IsNil() {
		return nil, fmt.Errorf("find history: a %s has no history", cache.Type())
	}
	changes = changes.Elem()
	ring := changes.FieldByName("cache")
	if ring.Kind() != reflect.Slice {
		return nil, fmt.Errorf("find history: a %s has no cache", changes.Type())
	}
	change := ring.Type().Elem().Elem()
	for name, kind := range map[string]reflect.Type{"RecordTime": reflect.TypeFor[time.Time](), "ResourceVersion": reflect.TypeFor[uint64]()} {
		if field, ok := change.FieldByName(name); !ok || field.Type != kind {
			return nil, fmt.Errorf("find history: a %s has no %s", change, name)
		}
	}
	h := &history{resource: resource, changes: reflect.NewAt(ring.Type(), unsafe.Pointer(ring.UnsafeAddr())).Elem()}
	var err error
	find := func(in reflect.Value, name string, into any) {
		field, pointer := in.FieldByName(name), reflect.ValueOf(into).Elem()
		if !field.IsValid() || field.Type() != pointer.Type().Elem() {
			err = fmt.Errorf("find history: a %s has no %s of the kind that is expected", in.Type(), name)
			return
		}
		pointer.Set(reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())))
	}
	find(cache, "RWMutex", &h.mu)
	find(cache, "storage", &h.objects)
	find(changes, "capacity", &h.capacity)
	find(changes, "startIndex", &h.start)
	find(changes, "endIndex", &h.end)
	find(changes, "removedEventSinceRelist", &h.removed)
	return h, err
}

// forget forgets changes that are older than a time, except the last one of them. The watch cache
// remembers from that one on. So a client that has listed the objects since that time can watch
// from there, even if no object changed for long before. It forgets too what all objects were
// before that change. The datastore answers lists of then.
func (h *history) forget(before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	start, end := *h.start, *h.end
	for start < end-1 && h.at(start+1).Before(before) {
		start++
	}
	if start < end {
		(*h.objects).CompactSnapshotsLocked(h.change(start).FieldByName("ResourceVersion").Uint())
	}
	if start == *h.start {
		return
	}
	capacity := leastCapacity
	for capacity < end-start {
		capacity *= 2
	}
	kept := reflect.MakeSlice(h.changes.Type(), capacity, capacity)
	for i := start; i < end; i++ {
		kept.Index(i % capacity).Set(h.changes.Index(i % *h.capacity))
	}
	h.changes.Set(kept)
	if capacity != *h.capacity {
		metrics.RecordsWatchCacheCapacityChange(h.resource, *h.capacity, capacity)
	}
	*h.start, *h.capacity, *h.removed = start, capacity, true
}

// change returns the change with a number.
func (h *history) change(number int) reflect.Value {
	return h.changes.Index(number % *h.capacity).Elem()
}

// at returns when a change happened.
func (h *history) at(number int) time.Time {
	return h.change(number).FieldByName("RecordTime").Interface().(time.Time)
}
