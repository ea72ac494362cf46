// Package objectcache is the one cache of API objects of a process: each kind
// of object is watched once, decoded once and kept once, whoever wants it. It
// is a shared informer factory, upstream's, of which every component gets a
// view of its own. The apiserver package makes a server's.
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

// Source gives a component a factory of its process's informers. The component
// ends with ctx, and calls the factory's Shutdown then. What it gets is shared:
// it must not be changed, and has no managedFields.
type Source func(ctx context.Context) (informers.SharedInformerFactory, error)

// WithoutManagedFields is a cache.TransformFunc that saves the memory of what
// nobody reads from a cache.
func WithoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// Own is the source of a factory that is not shared.
func Own(client kubernetes.Interface) Source {
	return func(context.Context) (informers.SharedInformerFactory, error) {
		return informers.NewSharedInformerFactory(client, 0), nil
	}
}

// Cache is a factory whose informers live as long as the cache, and not only as
// long as those who asked for them.
type Cache struct {
	ctx    context.Context
	shared informers.SharedInformerFactory
	client kubernetes.Interface

	mu   sync.Mutex
	hubs map[cache.SharedIndexInformer]*hub
}

// New makes a cache of a factory whose informers may have been started. Those
// that nobody has asked for before use client and end with ctx.
func New(ctx context.Context, shared informers.SharedInformerFactory, client kubernetes.Interface) *Cache {
	return &Cache{ctx: ctx, shared: shared, client: client, hubs: map[cache.SharedIndexInformer]*hub{}}
}

func (c *Cache) hubOf(informer cache.SharedIndexInformer) (*hub, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.hubs[informer]; ok {
		return h, nil
	}
	h, err := newHub(c.ctx, informer)
	if err == nil {
		c.hubs[informer] = h
	}
	return h, err
}

// Options are what may differ from view to view.
type Options struct {
	// Resync is for handlers that name no period of their own; zero is never.
	Resync time.Duration
	// Own has the kinds of which this view keeps objects of its own, such as a
	// selection of them. They live as long as the view. Nil is for none.
	Own informers.SharedInformerFactory
	// OwnKinds says of which kinds Own has made its informers already: pointers
	// to objects.
	OwnKinds []any
}
