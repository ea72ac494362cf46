package objectcache

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ShareServices returns a client of Services for a component that makes an informer of its own. The
// informer keeps the very objects of this process's cache, so the component must not change them.
// With Share, it would keep copies. ShareServices answers the same watches as Share, and all other
// requests go to client. namespace is that of client, or "" for all.
func ShareServices(client typedcorev1.ServiceInterface, source Source, namespace string) typedcorev1.ServiceInterface {
	return sharedServices{client, source, namespace}
}

type sharedServices struct {
	typedcorev1.ServiceInterface
	source    Source
	namespace string
}

// Watch implements typedcorev1.ServiceInterface.
func (s sharedServices) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	asked := askedWatch{resource: corev1.SchemeGroupVersion.WithResource("services"), namespace: s.namespace}
	if options.SendInitialEvents == nil || !*options.SendInitialEvents || !asked.parseSelectors(options.LabelSelector, options.FieldSelector) {
		return s.ServiceInterface.Watch(ctx, options)
	}
	w := &objectWatch{events: make(chan watch.Event)}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := s.source.tell(w.ctx, asked, &corev1.Service{}, w.send); err != nil {
		w.cancel()
		return nil, fmt.Errorf("watch services in the cache: %w", err)
	}
	context.AfterFunc(w.ctx, w.close)
	return w, nil
}

// objectWatch is a watch of objects of the cache.
type objectWatch struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex // for those who send, and the one who closes
	events chan watch.Event
}

// send waits until the component takes the event, or until the watch ends.
func (w *objectWatch) send(kind watch.EventType, object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	is, ok := object.(runtime.Object)
	if !ok || w.ctx.Err() != nil {
		return
	}
	select {
	case w.events <- watch.Event{Type: kind, Object: is}:
	case <-w.ctx.Done():
	}
}

func (w *objectWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.events)
}

// Stop implements watch.Interface.
func (w *objectWatch) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *objectWatch) ResultChan() <-chan watch.Event { return w.events }
