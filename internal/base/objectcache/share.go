package objectcache

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	watchcoding "k8s.io/client-go/rest/watch"
	"k8s.io/client-go/tools/cache"
)

// Share returns config for a component that makes informers of its own, such as
// upstream's kubelet. Watches of the given kinds, which are pointers to objects, are
// answered from the cache of this process. A server then has one watch of a kind for each
// node, and not one for each component.
//
// Only a watch that asks for its initial events is answered so, as informers do since
// client-go 1.35: it begins with all objects, so it needs no history. All other requests
// go where config sends them. The component gets copies of the objects. RBAC does not
// stand between: name only kinds that the component's user may read.
//
//upstream:relies-on k8s.io/client-go/tools/cache/reflector.go Reflector.watchList
func Share(config *rest.Config, source Source, kinds ...runtime.Object) *rest.Config {
	s := &sharing{next: config.Transport, source: source, kinds: map[schema.GroupVersionResource]runtime.Object{}}
	for _, kind := range kinds {
		// This fails only for kinds of which client-go has no informers.
		if known, _, err := scheme.Scheme.ObjectKinds(kind); err == nil {
			resource, _ := meta.UnsafeGuessKindToResource(known[0])
			s.kinds[resource] = kind
		}
	}
	shared := rest.CopyConfig(config)
	shared.Transport = s
	return shared
}

// sharing is the transport of a component that shares.
type sharing struct {
	next   http.RoundTripper
	source Source
	kinds  map[schema.GroupVersionResource]runtime.Object
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (s *sharing) WrappedRoundTripper() http.RoundTripper { return s.next }

// RoundTrip implements http.RoundTripper.
func (s *sharing) RoundTrip(request *http.Request) (*http.Response, error) {
	asked, ok := parseWatch(request)
	kind := s.kinds[asked.resource]
	if !ok || kind == nil {
		return s.next.RoundTrip(request)
	}
	if request.Body != nil {
		_ = request.Body.Close()
	}
	ctx, cancel := context.WithCancel(request.Context())
	body, err := s.answer(ctx, asked, kind)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch %s in the cache: %w", asked.resource.Resource, err)
	}
	return &http.Response{
		Status:     "200 " + http.StatusText(http.StatusOK),
		StatusCode: http.StatusOK,
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header:        http.Header{"Content-Type": {runtime.ContentTypeProtobuf + ";stream=watch"}},
		ContentLength: -1,
		Body:          &watchBody{body, cancel},
		Request:       request,
	}, nil
}

// watchBody is what a component reads of an answer.
type watchBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the watch.
func (b *watchBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// answer begins to write a watch, which ends with ctx.
func (s *sharing) answer(ctx context.Context, asked askedWatch, kind runtime.Object) (*io.PipeReader, error) {
	body, writer := io.Pipe()
	events, err := newEventWriter(writer)
	if err != nil {
		return nil, err
	}
	if err := s.source.tell(ctx, asked, kind, events.write); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { writer.CloseWithError(context.Cause(ctx)) })
	return body, nil
}

// tell calls write with the events of a watch until ctx ends: first one for each object, then a bookmark
// that says so, and then the changes. The objects are those of the cache.
func (s Source) tell(ctx context.Context, asked askedWatch, kind runtime.Object, write func(watch.EventType, any)) error {
	factory, err := s(ctx)
	if err != nil {
		return err
	}
	found, err := factory.ForResource(asked.resource)
	if err != nil {
		factory.Shutdown()
		return err
	}
	registration, err := found.Informer().AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: asked.selects,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { write(watch.Added, object) },
			UpdateFunc: func(_, object any) { write(watch.Modified, object) },
			DeleteFunc: func(object any) { write(watch.Deleted, Latest(object)) },
		},
	})
	if err != nil {
		factory.Shutdown()
		return err
	}
	context.AfterFunc(ctx, factory.Shutdown)
	factory.StartWithContext(ctx)
	go func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			write(watch.Bookmark, initialEnd(kind, found.Informer().LastSyncResourceVersion()))
		case <-ctx.Done():
		}
	}()
	return nil
}

// initialEnd returns the object of the bookmark after all initial objects.
func initialEnd(kind runtime.Object, version string) runtime.Object {
	mark := newLike(kind)
	if accessor, err := meta.Accessor(mark); err == nil {
		accessor.SetResourceVersion(version)
		accessor.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return mark
}

// The fields by which a watch may select objects.
const (
	nameField      = metav1.ObjectNameField
	namespaceField = "metadata.namespace"
	clusterIPField = "spec.clusterIP"
)

// askedWatch is a watch that begins with all objects.
type askedWatch struct {
	resource  schema.GroupVersionResource
	namespace string // all if it is empty
	labels    labels.Selector
	fields    fields.Selector
}

// parseWatch returns what a request asks for. It returns false if the request is not such
// a watch, or has a selector or an encoding that only the API server knows.
func parseWatch(request *http.Request) (asked askedWatch, ok bool) {
	query, err := url.ParseQuery(request.URL.RawQuery)
	if err != nil || request.Method != http.MethodGet || query.Get("watch") != "true" || query.Get("sendInitialEvents") != "true" ||
		!strings.HasPrefix(request.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		return asked, false
	}
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		asked.resource.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		asked.resource.Group, asked.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return asked, false
	}
	if parts[0] == "namespaces" && len(parts) == 3 {
		asked.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) != 1 {
		return asked, false
	}
	asked.resource.Resource = parts[0]
	return asked, asked.parseSelectors(query.Get("labelSelector"), query.Get("fieldSelector"))
}

// parseSelectors returns false if only the API server knows a selector.
func (a *askedWatch) parseSelectors(byLabels, byFields string) bool {
	var err error
	if a.labels, err = labels.Parse(byLabels); err != nil {
		return false
	}
	if a.fields, err = fields.ParseSelector(byFields); err != nil {
		return false
	}
	for _, requirement := range a.fields.Requirements() {
		switch requirement.Field {
		case nameField, namespaceField:
		case clusterIPField: // which the kubelet selects Services by
			if a.resource != corev1.SchemeGroupVersion.WithResource("services") {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// selects tells whether an object of the cache belongs to the watch.
func (a askedWatch) selects(object any) bool {
	object = Latest(object)
	accessor, err := meta.Accessor(object)
	if err != nil || a.namespace != "" && accessor.GetNamespace() != a.namespace || !a.labels.Matches(labels.Set(accessor.GetLabels())) {
		return false
	}
	known := fields.Set{nameField: accessor.GetName(), namespaceField: accessor.GetNamespace()}
	if service, ok := object.(*corev1.Service); ok {
		known[clusterIPField] = service.Spec.ClusterIP
	}
	return a.fields.Matches(known)
}

// eventWriter writes a watch as the API server does.
type eventWriter struct {
	mu      sync.Mutex
	encoder *watchcoding.Encoder
}

func newEventWriter(w io.Writer) (*eventWriter, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", runtime.ContentTypeProtobuf)
	}
	frames := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(w), info.StreamSerializer.Serializer)
	return &eventWriter{encoder: watchcoding.NewEncoder(frames, info.Serializer)}, nil
}

// write writes an event of an object of the cache. It waits until the component reads it.
func (e *eventWriter) write(kind watch.EventType, object any) {
	// Encoding needs the kind, which objects of the cache do not have, and nobody may
	// change these. So it gets a copy of the outermost struct.
	copied := newLike(object)
	reflect.ValueOf(copied).Elem().Set(reflect.ValueOf(object).Elem())
	e.encode(kind, copied)
}

// newLike returns a pointer to a new struct of the type that object, a runtime.Object,
// points to.
func newLike(object any) runtime.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
}

func (e *eventWriter) encode(kind watch.EventType, object runtime.Object) {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return // no informer of client-go has such an object
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	e.mu.Lock()
	defer e.mu.Unlock()
	// This fails only when the component has ended the watch.
	_ = e.encoder.Encode(&watch.Event{Type: kind, Object: object})
}
