// Follows k8s.io/client-go v0.37.2, tools/cache/shared_informer.go.

package objectcache

import (
	"context"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

// hub passes on to all handlers of an informer what the informer tells the hub's one
// handler. With upstream's processorListener, each handler would have two goroutines and
// a buffer of 16 KiB all the time. Here it has a goroutine only while there is something
// to pass on. A process has hundreds of handlers, which mostly wait.
//
//upstream:follows k8s.io/client-go/tools/cache/shared_informer.go sharedProcessor.distribute processorListener.run sharedIndexInformer.AddEventHandlerWithOptions
type hub struct {
	mu        sync.Mutex
	synced    bool
	listeners map[*listener]bool
	// objects are the objects that the listeners know. The informer's own store may be
	// ahead of them. A new listener begins with them, so that it misses nothing and gets
	// nothing twice.
	objects map[cache.ObjectName]any
}

// newHub makes the hub of an informer. It works until ctx ends.
func newHub(ctx context.Context, informer cache.SharedIndexInformer) (*hub, error) {
	h := &hub{listeners: map[*listener]bool{}, objects: map[cache.ObjectName]any{}}
	var never time.Duration
	registration, err := informer.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &never})
	if err != nil {
		return nil, err
	}
	go func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			h.setSynced()
		case <-ctx.Done():
		}
	}()
	return h, nil
}

func (h *hub) setSynced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = true
	for l := range h.listeners {
		l.tell(l.setSynced)
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (h *hub) OnAdd(object any, isInInitialList bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(object)
	for l := range h.listeners {
		l.tell(func() { l.handler.OnAdd(object, isInInitialList) })
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *hub) OnUpdate(before, object any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(object)
	for l := range h.listeners {
		l.tell(func() { l.handler.OnUpdate(before, object) })
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *hub) OnDelete(object any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
		delete(h.objects, name)
	}
	for l := range h.listeners {
		l.tell(func() { l.handler.OnDelete(object) })
	}
}

func (h *hub) keep(object any) {
	if name, err := cache.ObjectToName(object); err == nil {
		h.objects[name] = object
	}
}

// add adds a handler. The handler gets all objects again after each period, unless period
// is zero.
func (h *hub) add(handler cache.ResourceEventHandler, period time.Duration) *listener {
	l := &listener{hub: h, handler: handler, synced: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, object := range h.objects {
		l.tell(func() { handler.OnAdd(object, true) })
	}
	if h.synced {
		l.tell(l.setSynced)
	}
	h.listeners[l] = true
	if period > 0 {
		l.resync = time.AfterFunc(period, func() { h.resync(l, period) })
	}
	return l
}

func (h *hub) resync(l *listener, period time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.listeners[l] {
		return
	}
	for _, object := range h.objects {
		l.tell(func() { l.handler.OnUpdate(object, object) })
	}
	l.resync.Reset(period)
}

// remove removes a handler that add has added. A call of it may still be under way.
func (h *hub) remove(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	if l.resync != nil {
		l.resync.Stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed, l.pending = true, nil
}

// listener is a handler of a hub, together with its registration. It implements
// cache.ResourceEventHandlerRegistration and cache.DoneChecker.
type listener struct {
	hub     *hub
	handler cache.ResourceEventHandler
	resync  *time.Timer
	synced  chan struct{}

	mu      sync.Mutex
	pending []func()
	// running tells whether a goroutine calls the pending functions.
	running, removed bool
}

// tell calls a function after the earlier ones. It does not wait.
func (l *listener) tell(function func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removed {
		return
	}
	l.pending = append(l.pending, function)
	if !l.running {
		l.running = true
		go l.run()
	}
}

func (l *listener) run() {
	for function := l.next(); function != nil; function = l.next() {
		func() {
			defer utilruntime.HandleCrash()
			function()
		}()
	}
}

// next returns the next pending function, or nil if there is none. run must then end.
func (l *listener) next() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		l.running, l.pending = false, nil
		return nil
	}
	function := l.pending[0]
	l.pending[0] = nil
	l.pending = l.pending[1:]
	return function
}

func (l *listener) setSynced() { close(l.synced) }

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (l *listener) HasSynced() bool { return cache.IsDone(l) }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (l *listener) HasSyncedChecker() cache.DoneChecker { return l }

// Name implements cache.DoneChecker.
func (l *listener) Name() string { return "event handler of a shared informer" }

// Done implements cache.DoneChecker.
func (l *listener) Done() <-chan struct{} { return l.synced }
