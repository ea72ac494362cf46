package customresources

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// lateCache is the storage of one version of a kind. It has a watch cache from the first request
// for that version. Upstream's handler makes the storage of all versions of a kind at once.
// Each watch cache decodes and keeps all objects, and most clients of a kind use the same version.
type lateCache struct {
	// Interface is storage without a watch cache. It counts the objects, and serves reads until the
	// watch cache is filled, which would refuse them.
	storage.Interface
	// decorate makes the storage with a watch cache.
	decorate func() (storage.Interface, factory.DestroyFunc, error)

	mu        sync.Mutex
	cached    storage.Interface // nil until use
	destroys  []factory.DestroyFunc
	destroyed bool
}

// use returns the storage with a watch cache.
func (c *lateCache) use() (storage.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cached != nil {
		return c.cached, nil
	}
	if c.destroyed {
		return c.Interface, nil
	}
	cached, destroy, err := c.decorate()
	if err != nil {
		return nil, err
	}
	c.cached, c.destroys = cached, append(c.destroys, destroy)
	return cached, nil
}

// read is use for a request to read.
func (c *lateCache) read() (storage.Interface, error) {
	cached, err := c.use()
	if err == nil && cached.ReadinessCheck() != nil {
		return c.Interface, nil
	}
	return cached, err
}

// destroy implements factory.DestroyFunc.
func (c *lateCache) destroy() {
	c.mu.Lock()
	destroys := c.destroys
	c.destroys, c.destroyed = nil, true
	c.mu.Unlock()
	for _, destroy := range destroys {
		destroy()
	}
}

// Create implements storage.Interface.
func (c *lateCache) Create(ctx context.Context, key string, object, into runtime.Object, ttl uint64) error {
	cached, err := c.use()
	if err != nil {
		return err
	}
	return cached.Create(ctx, key, object, into, ttl)
}

// Delete implements storage.Interface.
func (c *lateCache) Delete(ctx context.Context, key string, into runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, existing runtime.Object, options storage.DeleteOptions) error {
	cached, err := c.use()
	if err != nil {
		return err
	}
	return cached.Delete(ctx, key, into, preconditions, validate, existing, options)
}

// Watch implements storage.Interface.
func (c *lateCache) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	cached, err := c.read()
	if err != nil {
		return nil, err
	}
	return cached.Watch(ctx, key, options)
}

// Get implements storage.Interface.
func (c *lateCache) Get(ctx context.Context, key string, options storage.GetOptions, into runtime.Object) error {
	cached, err := c.read()
	if err != nil {
		return err
	}
	return cached.Get(ctx, key, options, into)
}

// GetList implements storage.Interface.
func (c *lateCache) GetList(ctx context.Context, key string, options storage.ListOptions, into runtime.Object) error {
	cached, err := c.read()
	if err != nil {
		return err
	}
	return cached.GetList(ctx, key, options, into)
}

// GuaranteedUpdate implements storage.Interface.
func (c *lateCache) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, existing runtime.Object) error {
	cached, err := c.use()
	if err != nil {
		return err
	}
	return cached.GuaranteedUpdate(ctx, key, into, ignoreNotFound, preconditions, update, existing)
}
