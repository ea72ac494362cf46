// Package objectcache is a process's one cache of API objects. Each kind of object is
// watched once, decoded once and kept once, for all components. The cache is one of
// upstream's shared informer factories, and every component gets its own view of it. The
// apiserver package makes a server's cache.
package objectcache

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Source gives a component a factory of its process's informers. The component ends with
// ctx, and must then call the factory's Shutdown. The objects are shared and must not be
// changed. They have no managedFields.
type Source func(ctx context.Context) (informers.SharedInformerFactory, error)

// Open makes a factory for work that may end before ctx does. The work uses the context that Open returns,
// and calls end at last. end cancels this context before it calls Shutdown: informers that are not shared
// end only with their context, and Shutdown waits for them.
func (s Source) Open(ctx context.Context) (working context.Context, factory informers.SharedInformerFactory, end func(), err error) {
	working, cancel := context.WithCancel(ctx)
	factory, err = s(working)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return working, factory, func() { cancel(); factory.Shutdown() }, nil
}

// WithoutManagedFields is a cache.TransformFunc that drops managedFields, which nobody
// reads from a cache.
func WithoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// Own returns a source whose factories are not shared.
func Own(client kubernetes.Interface) Source {
	return func(context.Context) (informers.SharedInformerFactory, error) {
		return informers.NewSharedInformerFactory(client, 0), nil
	}
}

// Cache is a factory whose informers live as long as the cache, not only as long as the
// components that asked for them.
type Cache struct {
	ctx    context.Context
	shared informers.SharedInformerFactory
	client kubernetes.Interface

	mu sync.Mutex
	// hubs are those of the informers that have these indexers. Client-go makes a new value
	// for the same informer at each call of Informer.
	//
	//upstream:relies-on k8s.io/client-go/tools/cache/shared_informer.go sharedIndexInformer.GetIndexer NewTypedSharedIndexInformer
	hubs map[cache.Indexer]*hub
}

// New makes a cache from a factory, whose informers may already run. Informers that it
// starts use client and end with ctx.
func New(ctx context.Context, shared informers.SharedInformerFactory, client kubernetes.Interface) *Cache {
	return &Cache{ctx: ctx, shared: shared, client: client, hubs: map[cache.Indexer]*hub{}}
}

func (c *Cache) hubOf(informer cache.SharedIndexInformer) (*hub, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	indexer := informer.GetIndexer()
	if h, ok := c.hubs[indexer]; ok {
		return h, nil
	}
	h, err := newHub(c.ctx, informer)
	if err == nil {
		c.hubs[indexer] = h
	}
	return h, err
}

// Options are the differences between views.
type Options struct {
	// Resync is the period for handlers that name none. Zero means never.
	Resync time.Duration
	// Only is of the kind of which this view shows only some objects. The zero value is of none.
	Only Selection
}
