package gatewaycontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

// world is a cluster with fake clients, a Compiler and a Controller, in a bubble of synctest.
type world struct {
	*testing.T
	ctx      context.Context
	api      *fake.Clientset
	custom   *dynamicfake.FakeDynamicClient
	informer objectcache.Source
	compiler *Compiler
	issuer   fakeIssuer

	mu sync.Mutex
	// state is what node n serves, and updates is how often it was told.
	state   *routing.State
	updates int
}

// run runs do beside a Compiler and a Controller. The YAML documents are there at the start.
func run(t *testing.T, objects string, do func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorld(t, ctx, objects)
		w.compiler = New(Config{
			Client: func(context.Context) *rest.Config { return &rest.Config{} }, Informers: w.informer, Pools: true,
			Sockets: front.Options{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			Backends: endpoints.Rules{
				OwnPods: true, PodRanges: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
				Allowed: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Owner:   func(netip.Addr) (string, bool) { return "", false },
			},
		})
		w.compiler.dial = func(*rest.Config) (dynamic.Interface, error) { return w.custom, nil }
		controller := NewController(ControllerConfig{
			Client: w.compiler.cfg.Client, Informers: w.informer, Compiler: w.compiler,
			Owner: func(address netip.Addr) (string, bool) { return "m", address == netip.MustParseAddr("192.0.2.66") },
			ACME:  acme.Config{Directory: "https://ca.example/directory", Refused: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}},
		})
		controller.newIssuer = w.issuer.make
		controller.clients = func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error) { return w.api, w.custom, nil }
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.compiler.Run(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := controller.Lead(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			err := w.compiler.Watch(t.Context(), "n", w.serve)
			if !errors.Is(err, published.ErrEnded) {
				t.Errorf("the watch of the node ended with %v", err)
			}
		})
		w.settle()
		do(w)
		cancel()
		running.Wait()
	})
}

// newWorld makes the clients.
func newWorld(t *testing.T, ctx context.Context, objects string) *world {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		kinds.Classes: "GatewayClassList", kinds.Gateways: "GatewayList", kinds.ListenerSets: "ListenerSetList", kinds.HTTPRoutes: "HTTPRouteList",
		kinds.GRPCRoutes: "GRPCRouteList", kinds.TLSRoutes: "TLSRouteList", kinds.TCPRoutes: "TCPRouteList", kinds.UDPRoutes: "UDPRouteList",
		kinds.Grants: "ReferenceGrantList", kinds.Policies: "BackendTLSPolicyList", loadbalancercontrol.PoolResource: "LoadBalancerPoolList",
	}
	w := &world{
		T: t, ctx: ctx, api: fake.NewClientset(),
		custom: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds),
	}
	// The API server gives Services their families, and ports their node ports.
	allocate := func(action k8stesting.Action) (bool, runtime.Object, error) {
		service, is := action.(k8stesting.CreateAction).GetObject().(*corev1.Service)
		if is && service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			for i := range service.Spec.Ports {
				service.Spec.Ports[i].NodePort = 30000 + service.Spec.Ports[i].Port%1000
			}
			service.UID = "service-uid"
			service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		return false, nil, nil
	}
	w.api.PrependReactor("create", "services", allocate)
	w.api.PrependReactor("update", "services", allocate)
	w.apply(objects)
	factory := informers.NewSharedInformerFactory(w.api, 0)
	shared := objectcache.New(ctx, factory, w.api)
	w.informer = func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return shared.View(ctx, objectcache.Options{}), nil
	}
	t.Cleanup(factory.Shutdown)
	return w
}

// serve takes an update for node n.
func (w *world) serve(update routing.Update) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = w.state.With(update)
	w.updates++
	return nil
}

// served returns what node n serves.
func (w *world) served() routing.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == nil {
		return routing.State{}
	}
	return *w.state
}

// settle waits until nothing happens any more. Retries of failures are later.
func (w *world) settle() {
	for range 5 {
		time.Sleep(restTime)
		synctest.Wait()
	}
}

// apply creates or replaces objects from YAML documents.
func (w *world) apply(documents string) {
	w.Helper()
	for _, document := range strings.Split(documents, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object := &unstructured.Unstructured{}
		encoded, err := yaml.YAMLToJSON([]byte(document))
		if err == nil {
			err = object.UnmarshalJSON(encoded)
		}
		if err != nil {
			w.Fatal(err)
		}
		if object.GetUID() == "" {
			object.SetUID(types.UID(object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()))
		}
		if err := w.put(object); err != nil {
			w.Fatal(err)
		}
	}
}

// put creates or replaces an object.
func (w *world) put(object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	tracker, stored := w.custom.Tracker(), runtime.Object(object)
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	if gvk.Kind == "Gateway" {
		resource = kinds.Gateways // and not "gatewaies"
	}
	if typed := kubernetesKind(gvk.Kind); typed != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			return fmt.Errorf("convert %s: %w", gvk.Kind, err)
		}
		tracker, stored = w.api.Tracker(), typed
	}
	if _, err := tracker.Get(resource, object.GetNamespace(), object.GetName()); err == nil {
		return tracker.Update(resource, stored, object.GetNamespace())
	}
	return tracker.Create(resource, stored, object.GetNamespace())
}

// kubernetesKind returns an object of a kind that client-go knows, or nil.
func kubernetesKind(kind string) runtime.Object {
	switch kind {
	case "Service":
		return &corev1.Service{}
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "Node":
		return &corev1.Node{}
	case "Namespace":
		return &corev1.Namespace{}
	case "Secret":
		return &corev1.Secret{}
	case "ConfigMap":
		return &corev1.ConfigMap{}
	case "Pod":
		return &corev1.Pod{}
	case "Ingress":
		return &netv1.Ingress{}
	case "IngressClass":
		return &netv1.IngressClass{}
	}
	return nil
}

// remove deletes a custom object.
func (w *world) remove(kind schema.GroupVersionResource, namespace, name string) {
	w.Helper()
	if err := w.custom.Resource(kind).Namespace(namespace).Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

// condition returns STATUS/REASON of a condition of a custom object, or "".
func (w *world) condition(kind schema.GroupVersionResource, namespace, name, condition string) string {
	w.Helper()
	object, err := w.custom.Resource(kind).Namespace(namespace).Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	if parents, _, _ := unstructured.NestedSlice(object.Object, "status", "parents"); len(parents) > 0 {
		conditions, _, _ = unstructured.NestedSlice(parents[0].(map[string]any), "conditions")
	}
	for _, one := range conditions {
		fields := one.(map[string]any)
		if fields["type"] == condition {
			if _, err := time.Parse(time.RFC3339, fmt.Sprint(fields["lastTransitionTime"])); err != nil {
				w.Errorf("condition %s of %s has the time %v", condition, name, fields["lastTransitionTime"])
			}
			return fmt.Sprintf("%v/%v", fields["status"], fields["reason"])
		}
	}
	return ""
}

// service returns a Service, or nil.
func (w *world) service(namespace, name string) *corev1.Service {
	service, err := w.api.CoreV1().Services(namespace).Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return service
}

// shared returns the Service of the shared front, or nil.
func (w *world) shared() *corev1.Service {
	return w.service(front.Shared.Namespace, front.Shared.Name)
}

// endpoints returns NODE=ADDRESS of the endpoints of a Service.
func (w *world) endpoints(service string) (all []string) {
	w.Helper()
	found, err := w.api.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(w.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		w.Fatal(err)
	}
	for _, slice := range found.Items {
		for _, endpoint := range slice.Endpoints {
			all = append(all, *endpoint.NodeName+"="+endpoint.Addresses[0])
		}
	}
	slices.Sort(all)
	return all
}

// events returns REASON OBJECT of the Events, sorted.
func (w *world) events() (all []string) {
	w.Helper()
	found, err := w.api.CoreV1().Events(metav1.NamespaceAll).List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, event := range found.Items {
		all = append(all, fmt.Sprintf("%s %s %s/%s ×%d", event.Reason, event.InvolvedObject.Kind, event.InvolvedObject.Namespace, event.InvolvedObject.Name, event.Count))
	}
	slices.Sort(all)
	return all
}

// listed returns the resources that were listed since the last call, sorted.
func (w *world) listed() (kinds []string) {
	for _, action := range slices.Concat(w.api.Actions(), w.custom.Actions()) {
		if action.GetVerb() == "list" {
			kinds = append(kinds, action.GetResource().Resource)
		}
	}
	w.api.ClearActions()
	w.custom.ClearActions()
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// writes returns what was written since the last call.
func (w *world) writes() (all []string) {
	for _, action := range slices.Concat(w.api.Actions(), w.custom.Actions()) {
		if verb := action.GetVerb(); verb != "list" && verb != "watch" && verb != "get" {
			all = append(all, strings.TrimSuffix(verb+" "+action.GetResource().Resource+"/"+action.GetSubresource(), "/"))
		}
	}
	w.api.ClearActions()
	w.custom.ClearActions()
	return all
}
