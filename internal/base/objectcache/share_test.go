package objectcache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// passed is a transport that keeps the paths of requests, and refuses them.
type passed struct {
	mu    sync.Mutex
	paths []string
}

func (p *passed) RoundTrip(request *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths = append(p.paths, request.URL.Path)
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: http.NoBody, Request: request}, nil
}

func protobuf(transport http.RoundTripper) *rest.Config {
	return &rest.Config{Host: "https://cluster", Transport: transport, ContentConfig: rest.ContentConfig{
		AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		ContentType:        runtime.ContentTypeProtobuf,
	}}
}

// TestShare has an informer of a component follow the objects of the cache, without a
// request to the API.
func TestShare(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	service := func(name, class string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: "7", Labels: map[string]string{"class": class}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.43.0.10"},
		}
	}
	headless := service("headless", "seen")
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	api := fake.NewClientset(service("first", "seen"), service("hidden", "other"), headless,
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, AddressType: discoveryv1.AddressTypeIPv4},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "other"}, AddressType: discoveryv1.AddressTypeIPv4})
	shared := New(ctx, informers.NewSharedInformerFactory(api, 0), api)
	source := func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return shared.View(ctx, Options{}), nil
	}
	next := &passed{}
	client, err := kubernetes.NewForConfig(Share(protobuf(next), source, &corev1.Service{}, &discoveryv1.EndpointSlice{}))
	if err != nil {
		t.Fatal(err)
	}

	own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector, options.FieldSelector = "class=seen", "spec.clusterIP!=None"
	}))
	changes := make(chan string, 10)
	tell := func(what string) func(any) {
		return func(object any) {
			s := object.(*corev1.Service)
			changes <- what + " " + s.Name + " " + s.Spec.ClusterIP
		}
	}
	services := own.Core().V1().Services().Informer()
	_, _ = services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell("add"), UpdateFunc: func(_, now any) { tell("update")(now) }, DeleteFunc: tell("delete"),
	})
	slices := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"), informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = "metadata.name=kubernetes"
	}))
	endpoints := slices.Discovery().V1().EndpointSlices().Informer()
	own.StartWithContext(ctx)
	slices.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), services.HasSynced, endpoints.HasSynced) {
		t.Fatal("the informers were not filled")
	}
	if kept := endpoints.GetStore().List(); len(kept) != 1 || kept[0].(*discoveryv1.EndpointSlice).Namespace != "default" {
		t.Errorf("got %v, want one EndpointSlice in default", kept)
	}

	changed := service("first", "seen")
	changed.Spec.ClusterIP = "10.43.0.11"
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, "add first 10.43.0.10"},
		{func() error {
			_, err := api.CoreV1().Services("default").Update(ctx, changed, metav1.UpdateOptions{})
			return err
		}, "update first 10.43.0.11"},
		{func() error {
			_, err := api.CoreV1().Services("default").Update(ctx, service("hidden", "seen"), metav1.UpdateOptions{})
			return err
		}, "add hidden 10.43.0.10"},
		{func() error {
			return api.CoreV1().Services("default").Delete(ctx, "first", metav1.DeleteOptions{})
		}, "delete first 10.43.0.11"},
		{func() error {
			_, err := api.CoreV1().Services("default").Update(ctx, service("hidden", "other"), metav1.UpdateOptions{})
			return err
		}, "delete hidden 10.43.0.10"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := <-changes; got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	next.mu.Lock()
	if len(next.paths) > 0 {
		t.Errorf("requests went to the API: %v", next.paths)
	}
	next.mu.Unlock()
	for _, object := range shared.shared.Core().V1().Services().Informer().GetStore().List() {
		if s := object.(*corev1.Service); s.Kind != "" {
			t.Errorf("the cache's %s was changed: it has the kind %s", s.Name, s.Kind)
		}
	}
	cancel()
	own.Shutdown()
	slices.Shutdown()
}

// TestSharePasses makes sure that other requests go to the API.
func TestSharePasses(t *testing.T) {
	const whole = "watch=true&sendInitialEvents=true"
	for _, test := range []struct {
		method, path, query, accept string
		shared                      bool
	}{
		{path: "/api/v1/services", query: whole, shared: true},
		{path: "/api/v1/namespaces/default/services", query: whole, shared: true},
		{path: "/api/v1/services", query: whole + "&fieldSelector=metadata.name%3Dx&labelSelector=a+in+%28b%29", shared: true},
		{path: "/api/v1/services", query: whole + "&fieldSelector=spec.clusterIP%21%3DNone", shared: true},
		{path: "/apis/discovery.k8s.io/v1/endpointslices", query: whole, shared: true},
		{path: "/apis/discovery.k8s.io/v1/endpointslices", query: whole + "&fieldSelector=spec.clusterIP%21%3DNone"},
		{path: "/api/v1/services", query: "watch=true&resourceVersion=7"},
		{path: "/api/v1/services", query: "sendInitialEvents=true"},
		{path: "/api/v1/services", query: whole + "&fieldSelector=spec.type%3DNodePort"},
		{path: "/api/v1/services", query: whole + "&labelSelector=%28"},
		{path: "/api/v1/services", query: whole, accept: "application/json"},
		{path: "/api/v1/services/x", query: whole},
		{path: "/api/v1/namespaces/default/services/x", query: whole},
		{path: "/api/v1/pods", query: whole},
		{path: "/apis/discovery.k8s.io/v1beta1/endpointslices", query: whole},
		{path: "/apis/other.example/v1/services", query: whole},
		{path: "/", query: whole},
		{method: http.MethodPost, path: "/api/v1/services", query: whole},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		api := fake.NewClientset()
		shared := New(ctx, informers.NewSharedInformerFactory(api, 0), api)
		source := func(ctx context.Context) (informers.SharedInformerFactory, error) {
			return shared.View(ctx, Options{}), nil
		}
		next := &passed{}
		transport := Share(protobuf(next), source, &corev1.Service{}, &discoveryv1.EndpointSlice{}).Transport
		if test.accept == "" {
			test.accept = runtime.ContentTypeProtobuf + ",application/json"
		}
		request := &http.Request{Method: test.method, URL: &url.URL{Path: test.path, RawQuery: test.query}, Header: http.Header{"Accept": {test.accept}}, Body: io.NopCloser(strings.NewReader(""))}
		if request.Method == "" {
			request.Method = http.MethodGet
		}
		response, err := transport.RoundTrip(request.WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(next.paths) == 0; got != test.shared || got != (response.StatusCode == http.StatusOK) {
			t.Errorf("%s %s?%s, %s: shared %v, want %v", request.Method, test.path, test.query, test.accept, got, test.shared)
		}
		// The rest of a watch is not read. It ends with its request.
		_ = response.Body.Close()
		cancel()
	}
}

// TestShareBeforeTheCache makes sure that a component gets an error while there is no
// cache, so that it tries again.
func TestShareBeforeTheCache(t *testing.T) {
	source := func(context.Context) (informers.SharedInformerFactory, error) { return nil, errors.New("not started") }
	client, err := kubernetes.NewForConfig(Share(protobuf(&passed{}), source, &corev1.Service{}))
	if err != nil {
		t.Fatal(err)
	}
	initial := true
	_, err = client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{SendInitialEvents: &initial})
	if err == nil || !strings.Contains(err.Error(), "watch services in the cache") {
		t.Errorf("got %v", err)
	}
}
