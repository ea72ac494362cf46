package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The resources of the Gateway API. Clients of these kinds are dynamic: the typed clientset
// would add the apply configurations and the scheme of all versions to the executable.
var (
	classResource       = resource("gatewayclasses")
	gatewayResource     = resource("gateways")
	listenerSetResource = resource("listenersets")
	httpRouteResource   = resource("httproutes")
	grpcRouteResource   = resource("grpcroutes")
	tlsRouteResource    = resource("tlsroutes")
	tcpRouteResource    = resource("tcproutes")
	udpRouteResource    = resource("udproutes")
	grantResource       = resource("referencegrants")
	policyResource      = resource("backendtlspolicies")
	// poolResource is in /manifests/servicelb/pools.yaml.
	poolResource = schema.GroupVersionResource{Group: "kedge.dev", Version: "v1alpha1", Resource: "loadbalancerpools"}
)

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gwv1.GroupName, Version: gwv1.GroupVersion.Version, Resource: name}
}

// A kind that the API server does not know is looked for after firstLook, and then after twice
// as long each time, up to lastLook.
const (
	firstLook = time.Second
	lastLook  = time.Minute
)

// watched are the objects of a custom kind. It has only what one reader needs of an informer:
// the store, and a function that is called after each change.
type watched struct {
	cache.Store
	synced <-chan struct{}
	// absent is closed if the API server does not know the kind. Then there are no objects yet.
	absent    chan struct{}
	setAbsent func()
}

// watchKind watches a kind until ctx ends. running ends afterwards. convert is applied to each
// object.
func watchKind(ctx context.Context, running *sync.WaitGroup, client dynamic.Interface, kind schema.GroupVersionResource, convert cache.TransformFunc, changed func()) *watched {
	w := &watched{absent: make(chan struct{})}
	w.setAbsent = sync.OnceFunc(func() { close(w.absent) })
	of := client.Resource(kind)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return of.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return of.Watch(ctx, options)
			},
		}, client),
		ObjectType: &unstructured.Unstructured{},
		Handler:    handler,
		Transform:  convert,
	})
	w.Store, w.synced = store, controller.HasSyncedChecker().Done()
	running.Go(func() {
		if w.await(ctx, of) {
			controller.RunWithContext(ctx)
		}
	})
	return w
}

// await waits until the API server knows the kind. At the first start of a cluster that takes
// a moment, and a reflector would log errors. It returns false if ctx ends before.
func (w *watched) await(ctx context.Context, of dynamic.ResourceInterface) bool {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		_, err := of.List(ctx, metav1.ListOptions{Limit: 1})
		if !apierrors.IsNotFound(err) {
			return ctx.Err() == nil
		}
		w.setAbsent()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// wait waits until all objects are there. It returns false if ctx ends before.
func (w *watched) wait(ctx context.Context) bool {
	select {
	case <-w.synced:
	case <-w.absent:
	case <-ctx.Done():
		return false
	}
	return true
}

// typed is a cache.TransformFunc that makes an object of a Go type, without managedFields. An
// object that does not fit the type stays as it is, and list leaves it out: an error would
// keep all other objects from the store.
func typed[T any](object any) (any, error) {
	custom, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil
	}
	unstructured.RemoveNestedField(custom.Object, "metadata", "managedFields")
	converted := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(custom.Object, converted); err != nil {
		logrus.WithField("component", name).Warnf("Ignoring %s %s/%s, which cannot be read: %v", custom.GetKind(), custom.GetNamespace(), custom.GetName(), err)
		return object, nil
	}
	return converted, nil
}

// list returns the objects of a kind, sorted by name. It returns nil if the kind is not
// watched.
func list[T any, P interface {
	*T
	metav1.Object
}](w *watched) []P {
	if w == nil {
		return nil
	}
	var all []P
	for _, object := range w.List() {
		if converted, is := object.(P); is {
			all = append(all, converted)
		}
	}
	slices.SortFunc(all, func(a, b P) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return all
}
