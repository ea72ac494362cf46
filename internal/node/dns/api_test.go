package dns

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// fakeAPI answers the requests that the DNS makes to an API server: lists and watches of whole
// resources, and events. The fake clientset cannot replace it, because CoreDNS makes its own client
// from a rest.Config.
type fakeAPI struct {
	*httptest.Server
	events chan *corev1.Event

	mu       sync.Mutex
	objects  map[string][]runtime.Object // by resource
	watchers map[string][]chan metav1.WatchEvent
	read     map[string]bool
}

// asked tells whether a resource was listed or watched.
func (api *fakeAPI) asked(resource string) bool {
	api.mu.Lock()
	defer api.mu.Unlock()
	return api.read[resource]
}

func newFakeAPI(t *testing.T) *fakeAPI {
	api := &fakeAPI{
		events:   make(chan *corev1.Event, 10),
		objects:  map[string][]runtime.Object{},
		watchers: map[string][]chan metav1.WatchEvent{},
		read:     map[string]bool{},
	}
	api.Server = httptest.NewServer(http.HandlerFunc(api.serve))
	t.Cleanup(api.stop)
	return api
}

func (api *fakeAPI) config() *rest.Config { return &rest.Config{Host: api.URL, QPS: -1} }

func (api *fakeAPI) informers(t *testing.T) objectcache.Source {
	client, err := kubernetes.NewForConfig(api.config())
	must(t, err)
	return objectcache.Own(client)
}

// stop stops the API.
func (api *fakeAPI) stop() {
	// In this order no client can come back in between.
	_ = api.Listener.Close()
	api.CloseClientConnections()
	api.Close()
}

// send sends the addition, change (MODIFIED) or deletion (DELETED) of an object.
func (api *fakeAPI) send(t *testing.T, kind, resource string, object runtime.Object) {
	t.Helper()
	api.mu.Lock()
	defer api.mu.Unlock()
	if kind == "ADDED" {
		api.objects[resource] = append(api.objects[resource], object)
	}
	for _, watcher := range api.watchers[resource] {
		watcher <- event(kind, object)
	}
}

func event(kind string, object runtime.Object) metav1.WatchEvent {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		panic(err)
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw}}
}

func (api *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			var event corev1.Event
			// Clients send protobuf as soon as they can.
			if _, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &event); err == nil {
				api.events <- &event
				_ = json.NewEncoder(w).Encode(event)
				return
			}
		}
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	api.mu.Lock()
	api.read[resource] = true
	objects := append([]runtime.Object{}, api.objects[resource]...)
	watcher := make(chan metav1.WatchEvent, 10)
	if r.URL.Query().Get("watch") != "" {
		api.watchers[resource] = append(api.watchers[resource], watcher)
	}
	api.mu.Unlock()
	encoder := json.NewEncoder(w)
	if r.URL.Query().Get("watch") == "" {
		items := []json.RawMessage{}
		for _, object := range objects {
			items = append(items, event("", object).Object.Raw)
		}
		_ = encoder.Encode(map[string]any{"metadata": metav1.ListMeta{ResourceVersion: "1"}, "items": items})
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, object := range objects {
			_ = encoder.Encode(event("ADDED", object))
		}
		kinds := map[string]string{"services": "v1/Service", "namespaces": "v1/Namespace", "configmaps": "v1/ConfigMap",
			"pods": "v1/Pod", "endpointslices": "discovery.k8s.io/v1/EndpointSlice"}
		i := strings.LastIndexByte(kinds[resource], '/')
		_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"apiVersion": kinds[resource][:i], "kind": kinds[resource][i+1:],
			"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		}})
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event := <-watcher:
			_ = encoder.Encode(event)
			w.(http.Flusher).Flush()
		}
	}
}
