package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/objectcache"
)

// objects is the component of an agent that reads what its other components
// share. It reads as the service proxy: all nodes may know what that may.
type objects struct {
	client *rest.Config

	mu    sync.Mutex
	cache *objectcache.Cache // nil until Run
}

func newObjects(client *rest.Config) *objects { return &objects{client: client} }

// Name implements component.Component.
func (*objects) Name() string { return "objects" }

// Run implements component.Component. It is ready when there is a cache; what
// is in it is up to those who read.
func (o *objects) Run(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(o.client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	o.mu.Lock()
	o.cache = objectcache.New(ctx, factory, client)
	o.mu.Unlock()
	ready()
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// Informers is an objectcache.Source.
func (o *objects) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cache == nil {
		return nil, errors.New("read objects: not started")
	}
	return o.cache.View(ctx, objectcache.Options{}), nil
}

// trim drops what no component of an agent reads and takes most of the room.
func trim(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.Status.Images = nil
	}
	return objectcache.WithoutManagedFields(object)
}
