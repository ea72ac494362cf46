package gatewaycontrol

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

// watched are the objects of a custom kind. It has only what one reader needs of an informer:
// the store, and a function that is called after each change.
type watched struct {
	cache.Store
	synced <-chan struct{}
}

// watchKind watches a kind until ctx ends. running ends afterwards. convert is applied to each
// object.
func watchKind(ctx context.Context, running *sync.WaitGroup, client dynamic.Interface, kind schema.GroupVersionResource, convert cache.TransformFunc, changed func()) *watched {
	of := client.Resource(kind)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}
	// While the API server does not know the kind, there are no objects of it. An error would be
	// logged at each attempt.
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				list, err := of.List(ctx, options)
				if apierrors.IsNotFound(err) {
					return &unstructured.UnstructuredList{}, nil
				}
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				events, err := of.Watch(ctx, options)
				if apierrors.IsNotFound(err) && options.SendInitialEvents == nil {
					return nothing(ctx), nil
				}
				return events, err
			},
		}, client),
		ObjectType: &unstructured.Unstructured{},
		Handler:    handler,
		Transform:  convert,
	})
	running.Go(func() { controller.RunWithContext(ctx) })
	return &watched{store, controller.HasSyncedChecker().Done()}
}

// absentPause is how long a watch of a kind lasts that the API server does not know.
const absentPause = 2 * time.Second

// nothing is a watch without events that ends after absentPause.
func nothing(ctx context.Context) watch.Interface {
	events := watch.NewRaceFreeFake()
	ctx, cancel := context.WithTimeout(ctx, absentPause)
	context.AfterFunc(ctx, func() {
		events.Stop()
		cancel()
	})
	return events
}

// wait waits until all objects are there. It returns false if ctx ends before.
func (w *watched) wait(ctx context.Context) bool {
	select {
	case <-w.synced:
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
