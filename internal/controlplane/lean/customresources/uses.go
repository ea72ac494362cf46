package customresources

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// uses knows which kinds a handler may remember, and lets the handler forget those that were not
// used for keepTime.
type uses struct {
	// removeDead lets the handler forget the kinds that are leaving. It is called without mu.
	removeDead func()
	// room tells how many more watches of a kind another handler can take. It is nil if
	// there is no such handler.
	room func(name string) int

	mu sync.Mutex
	// kinds are those that the handler may remember, by the names of their
	// definitions.
	kinds map[string]*kind
	// sweeping is nil unless a kind is to be forgotten later, at due.
	sweeping *time.Timer
	due      time.Time
	closed   bool
}

// kind is a kind that is in use, or was a short time ago. Its life in a handler:
//
//	       not used for keepTime              no watch is left
//	used ────────────────────────▶ resting ────────────────────▶ leaving ──▶ forgotten
//	 ▲                                │
//	 └─────────── a request ──────────┘
//
// A request that comes while the kind is leaving waits until it is forgotten, and begins anew.
type kind struct {
	requests int
	// watches are those that the handler may end: their clients begin them again.
	watches map[*informerWatch]bool
	// last is when the last request began or ended, or when an object was decoded.
	last time.Time
	// resting says that nothing but watches is left, and that the handler has ended them.
	resting  bool
	versions map[string]*version
	// leaving is closed when the handler has forgotten the kind. It is nil before it
	// begins to.
	leaving chan struct{}
}

// version is a version of a kind.
type version struct {
	// codec decodes and encodes objects in the datastore.
	codec   runtime.Codec
	storage *lateCache
	// since is when the watch cache was made. It is zero if there is none.
	since time.Time
}

// informerWatch is a watch that an informer has begun.
type informerWatch struct{ end context.CancelFunc }

// enter says that a request for a kind begins. The caller calls leave when it ends.
func (u *uses) enter(name string) (leave func()) {
	k := u.lock(name)
	defer u.mu.Unlock()
	k.requests++
	u.usedLocked(k)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		k.requests--
		u.usedLocked(k)
	}
}

// enterWatch says that an informer begins to watch a kind. That is not a use of the kind,
// because informers begin their watches again every few minutes. When the handler is going
// to forget the kind, it calls end. The caller calls leave when the watch has ended.
func (u *uses) enterWatch(name string, end context.CancelFunc) (leave func()) {
	k, w := u.lock(name), &informerWatch{end}
	defer u.mu.Unlock()
	if k.watches == nil {
		k.watches = map[*informerWatch]bool{}
	}
	k.watches[w] = true
	u.sweepAfterLocked(k.rest())
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(k.watches, w)
		u.sweepAfterLocked(k.rest())
	}
}

// lock waits until a kind is not being forgotten, and returns it with mu locked.
func (u *uses) lock(name string) *kind {
	for {
		u.mu.Lock()
		k := u.kinds[name]
		if k == nil {
			k = &kind{last: time.Now()}
			u.kinds[name] = k
		}
		if k.leaving == nil {
			return k
		}
		u.mu.Unlock()
		<-k.leaving
	}
}

// rest returns how long a kind must not be used until it can be forgotten.
func (k *kind) rest() time.Duration { return keepTime - time.Since(k.last) }

// usedLocked notes that a kind is in use.
func (u *uses) usedLocked(k *kind) {
	k.last, k.resting = time.Now(), false
	u.sweepAfterLocked(keepTime)
}

// sweepAfterLocked calls sweep after a time, unless it is going to be called before that.
func (u *uses) sweepAfterLocked(duration time.Duration) {
	due := time.Now().Add(duration)
	if u.closed || u.sweeping != nil && !due.Before(u.due) {
		return
	}
	if u.sweeping != nil {
		u.sweeping.Stop()
	}
	u.due, u.sweeping = due, time.AfterFunc(duration, u.sweep)
}

// sweep lets the handler forget all kinds that were not used in keepTime. If such a kind
// is still watched, sweep ends the watches. The kind is forgotten when the last one has
// ended. So a client that does not read its watch can only keep the kind in memory.
func (u *uses) sweep() {
	u.mu.Lock()
	u.sweeping = nil
	var leaving []string
	for name, k := range u.kinds {
		if k.requests > 0 || k.leaving != nil || len(k.watches) > 0 && !u.hasRoomLocked(name, k) {
			continue
		}
		if rest := k.rest(); rest > 0 {
			u.sweepAfterLocked(rest)
			continue
		}
		k.resting = true
		for w := range k.watches {
			w.end()
		}
		if len(k.watches) == 0 {
			k.leaving = make(chan struct{})
			leaving = append(leaving, name)
		}
	}
	u.mu.Unlock()
	if len(leaving) > 0 {
		u.forget(leaving)
	}
}

// hasRoomLocked tells whether another handler can take all watches of a kind.
func (u *uses) hasRoomLocked(name string, k *kind) bool {
	return u.room != nil && len(k.watches) <= u.room(name)
}

// forget lets the handler forget kinds that are leaving.
func (u *uses) forget(names []string) {
	u.removeDead()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range names {
		close(u.kinds[name].leaving)
		delete(u.kinds, name)
	}
}

// settled tells whether the handler has had a watch cache of a kind's version for some time, and is
// going to remember the kind.
func (u *uses) settled(name, version string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := u.kinds[name]
	if k == nil || k.resting {
		return false
	}
	v := k.versions[version]
	return v != nil && !v.since.IsZero() && time.Since(v.since) >= settleTime
}

// requests returns how many requests for a kind are being served, watches included.
func (u *uses) requests(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if k := u.kinds[name]; k != nil {
		return k.requests
	}
	return 0
}

// cached notes that a version has got a watch cache.
func (u *uses) cached(v *version) {
	u.mu.Lock()
	defer u.mu.Unlock()
	v.since = time.Now()
}

// decoded notes that the handler has decoded an object of a kind.
func (u *uses) decoded(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if k := u.kinds[name]; k != nil && k.leaving == nil {
		u.usedLocked(k)
	}
}

// keepVersion remembers a version of a kind that the handler has made.
func (u *uses) keepVersion(name, of string, made *version) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if k := u.kinds[name]; k != nil {
		if k.versions == nil {
			k.versions = map[string]*version{}
		}
		k.versions[of] = made
	}
}

// version returns a version of a kind that the handler has made, or nil.
func (u *uses) version(name, of string) *version {
	u.mu.Lock()
	defer u.mu.Unlock()
	if k := u.kinds[name]; k != nil {
		return k.versions[of]
	}
	return nil
}

// isLeaving tells whether the handler is to forget a kind.
func (u *uses) isLeaving(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := u.kinds[name]
	return u.closed || k != nil && k.leaving != nil
}

// close makes all kinds leave for good.
func (u *uses) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	if u.sweeping != nil {
		u.sweeping.Stop()
		u.sweeping = nil
	}
}
