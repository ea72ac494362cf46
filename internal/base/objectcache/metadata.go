package objectcache

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// Metadata returns a view of a factory of informers of objects' metadata, for a component
// that ends with ctx and must then call Shutdown. As with other views, handlers share
// what an informer tells, and informers run with ctx. The garbage collector and the quotas
// add a handler each to the informer of every kind of custom resource. resync is the
// period for handlers that name none.
func Metadata(ctx context.Context, factory metadatainformer.SharedInformerFactory, resync time.Duration) metadatainformer.SharedInformerFactory {
	v := &view{
		Cache:    &Cache{ctx: ctx, hubs: map[cache.SharedIndexInformer]*hub{}},
		Options:  Options{Resync: resync},
		ctx:      ctx,
		handlers: map[*listener]bool{},
		started:  make(chan struct{}),
	}
	close(v.started)
	return &metadataView{factory, v}
}

type metadataView struct {
	metadatainformer.SharedInformerFactory
	view *view
}

// ForResource implements metadatainformer.SharedInformerFactory.
func (m *metadataView) ForResource(resource schema.GroupVersionResource) informers.GenericInformer {
	return &generic{m.SharedInformerFactory.ForResource(resource), m.view}
}

// Start implements metadatainformer.SharedInformerFactory. It ignores the channel: Metadata
// has got the context that counts.
//
//upstream:relies-on k8s.io/client-go/metadata/metadatainformer/informer.go metadataSharedInformerFactory.StartWithContext
func (m *metadataView) Start(stop <-chan struct{}) {
	if factory, ok := m.SharedInformerFactory.(interface{ StartWithContext(context.Context) }); ok {
		factory.StartWithContext(m.view.ctx)
		return
	}
	m.SharedInformerFactory.Start(stop)
}

// Shutdown implements metadatainformer.SharedInformerFactory.
func (m *metadataView) Shutdown() {
	m.view.Shutdown()
	m.SharedInformerFactory.Shutdown()
}
