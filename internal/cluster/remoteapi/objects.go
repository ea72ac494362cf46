package remoteapi

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Objects is the component of an agent, or of a server without an API server, that reads
// the objects which the node's other components share. It reads as the service proxy,
// because every node may read what the proxy may.
type Objects struct {
	client *rest.Config
	node   string

	mu    sync.Mutex
	cache *objectcache.Cache // nil until Run
}

// NewObjects makes the component for a node.
func NewObjects(clients *Clients, node string) *Objects {
	return &Objects{client: clients.ClientConfig(pki.ProxyUser, pki.NodeGroup(node)), node: node}
}

// Name implements component.Component.
func (*Objects) Name() string { return "objects" }

// Run implements component.Component. It is ready when there is a cache. The cache is
// filled when a component reads from it.
func (o *Objects) Run(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(o.client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(o.trim))
	o.mu.Lock()
	o.cache = objectcache.New(ctx, factory, client)
	o.mu.Unlock()
	ready()
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// Informers implements objectcache.Source. It fails before Run.
func (o *Objects) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cache == nil {
		return nil, errors.New("read objects: not started")
	}
	return o.cache.View(ctx, objectcache.Options{}), nil
}

// trim drops the fields that no component of an agent reads and that take most of the
// memory. The node's own images stay: the kubelet writes them again if they are missing.
func (o *Objects) trim(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok && node.Name != o.node {
		node.Status.Images = nil
	}
	return objectcache.WithoutManagedFields(object)
}
