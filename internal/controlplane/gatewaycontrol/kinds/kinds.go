// Package kinds has the kinds of the Gateway API as resources, and watches kinds that the API server
// may not know. Package sources watches them, and package statuses writes them.
package kinds

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// The resources of the Gateway API. Clients of these kinds are dynamic: the typed clientset
// would add the apply configurations and the scheme of all versions to the executable.
var (
	Classes      = resource("gatewayclasses")
	Gateways     = resource("gateways")
	ListenerSets = resource("listenersets")
	HTTPRoutes   = resource("httproutes")
	GRPCRoutes   = resource("grpcroutes")
	TLSRoutes    = resource("tlsroutes")
	TCPRoutes    = resource("tcproutes")
	UDPRoutes    = resource("udproutes")
	Grants       = resource("referencegrants")
	Policies     = resource("backendtlspolicies")
)

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gwv1.GroupName, Version: gwv1.GroupVersion.Version, Resource: name}
}

// Watch watches a kind as part of a stage, and returns the objects. convert is applied to each
// object, and changed is called after each change. While the API server does not know the kind,
// there are no objects of it: an error would be logged at each attempt.
func Watch(stage *objectcache.Stage, client dynamic.Interface, kind schema.GroupVersionResource, convert cache.TransformFunc, changed func()) cache.Store {
	of := client.Resource(kind)
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
		Handler:    objectcache.OnChange(func(any) { changed() }),
		Transform:  convert,
	})
	stage.Go(controller.RunWithContext, controller.HasSyncedChecker().Done())
	return store
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

// Typed is a cache.TransformFunc that makes an object of a Go type, without managedFields and without the
// annotation in which kubectl keeps a copy of the object. An object that does not fit the type stays as it
// is, and List leaves it out: an error would keep all other objects from the store.
func Typed[T any](object any) (any, error) {
	custom, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil
	}
	unstructured.RemoveNestedField(custom.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(custom.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	converted := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(custom.Object, converted); err != nil {
		logrus.WithField("component", "gateway-compiler").Warnf("Ignoring %s %s/%s, which cannot be read: %v", custom.GetKind(), custom.GetNamespace(), custom.GetName(), err)
		return object, nil
	}
	return converted, nil
}

// List returns the objects of a store, sorted by name. It returns nil if there is no store,
// because the kind is not watched.
func List[T any, P interface {
	*T
	metav1.Object
}](store cache.Store) []P {
	if store == nil {
		return nil
	}
	all := []P{}
	for _, object := range store.List() {
		if converted, is := object.(P); is {
			all = append(all, converted)
		}
	}
	slices.SortFunc(all, func(a, b P) int { return CompareNames(a, b) })
	return all
}

// CompareNames compares objects by NAMESPACE/NAME.
func CompareNames(a, b metav1.Object) int {
	if a.GetNamespace() == b.GetNamespace() { // the usual case, which needs no memory
		return strings.Compare(a.GetName(), b.GetName())
	}
	return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
}
