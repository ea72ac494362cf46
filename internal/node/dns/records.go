package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// clusterRecords implements records. It makes each record when CoreDNS asks for it, of the objects in
// the cache of this process. So the objects are in memory once. CoreDNS's own records would be a second
// copy of each Service and each EndpointSlice, with an index for each way to ask.
//
// It has what CoreDNS answers from without options: all namespaces, without the zones of nodes, without
// services of other clusters.
type clusterRecords struct {
	services, slices, namespaces cache.Store
	synced                       []cache.ResourceEventHandlerRegistration
	// modified is the time of the last change, in seconds since 1970.
	modified atomic.Int64

	mu sync.RWMutex
	// serviceOf has the Services with an address in the cluster. slicesOf has the EndpointSlices of a
	// Service, and slicesWith those with a ready endpoint of an address.
	serviceOf  index[netip.Addr]
	slicesOf   index[types.NamespacedName]
	slicesWith index[netip.Addr]
}

// index has the names of objects that may have a key. The store of their informer says whether they
// have it. The object that an informer tells as deleted is not the one that it told before.
type index[K comparable] map[K][]types.NamespacedName

func (i index[K]) add(key K, name types.NamespacedName) {
	if !slices.Contains(i[key], name) {
		i[key] = append(i[key], name)
	}
}

func (i index[K]) remove(key K, name types.NamespacedName) {
	if rest := slices.DeleteFunc(i[key], func(one types.NamespacedName) bool { return one == name }); len(rest) > 0 {
		i[key] = rest
	} else {
		delete(i, key)
	}
}

func emptyRecords() *clusterRecords {
	return &clusterRecords{serviceOf: index[netip.Addr]{}, slicesOf: index[types.NamespacedName]{}, slicesWith: index[netip.Addr]{}}
}

// newRecords returns the records of the cluster. They follow the cluster until ctx ends. The caller must
// call end after that.
func newRecords(ctx context.Context, source objectcache.Source) (r *clusterRecords, end func(), err error) {
	ctx, factory, end, err := source.Open(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the objects that DNS answers from: %w", err)
	}
	r = emptyRecords()
	services, namespaces := factory.Core().V1().Services().Informer(), factory.Core().V1().Namespaces().Informer()
	endpoints := factory.Discovery().V1().EndpointSlices().Informer()
	r.services, r.slices, r.namespaces = services.GetStore(), endpoints.GetStore(), namespaces.GetStore()
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		namespaces: cache.ResourceEventHandlerFuncs{},
		services:   following(r, r.addService, r.removeService, sameService),
		endpoints:  following(r, r.addSlice, r.removeSlice, sameEndpoints),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("read the objects that DNS answers from: %w", err)
		}
		r.synced = append(r.synced, registration)
	}
	factory.StartWithContext(ctx)
	return r, end, nil
}

// following returns a handler that keeps the indexes in step with the objects of a kind. same tells
// whether two states of an object have the same records.
func following[T any](r *clusterRecords, add, remove func(T), same func(before, now T) bool) cache.ResourceEventHandler {
	change := func(before, now any) {
		r.mu.Lock()
		defer r.mu.Unlock()
		was, had := objectcache.Latest(before).(T)
		is, has := now.(T)
		if had {
			remove(was)
		}
		if has {
			add(is)
		}
		if !had || !has || !same(was, is) {
			r.modified.Store(time.Now().Unix())
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { change(nil, now) },
		UpdateFunc: change,
		DeleteFunc: func(before any) { change(before, nil) },
	}
}

func (r *clusterRecords) addService(service *corev1.Service) {
	for _, address := range clusterIPs(service) {
		r.serviceOf.add(address, nameOf(service))
	}
}

func (r *clusterRecords) removeService(service *corev1.Service) {
	for _, address := range clusterIPs(service) {
		r.serviceOf.remove(address, nameOf(service))
	}
}

func (r *clusterRecords) addSlice(slice *discoveryv1.EndpointSlice) {
	r.slicesOf.add(serviceKey(slice), nameOf(slice))
	for _, address := range ready(slice) {
		r.slicesWith.add(address, nameOf(slice))
	}
}

func (r *clusterRecords) removeSlice(slice *discoveryv1.EndpointSlice) {
	r.slicesOf.remove(serviceKey(slice), nameOf(slice))
	for _, address := range ready(slice) {
		r.slicesWith.remove(address, nameOf(slice))
	}
}

func nameOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func serviceKey(slice *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

func clusterIPs(service *corev1.Service) []netip.Addr { return parsed(recordOf(service).ClusterIPs) }

// ready returns the addresses of ready endpoints.
func ready(slice *discoveryv1.EndpointSlice) []netip.Addr { return parsed(endpointsOf(slice).IndexIP) }

func parsed(texts []string) (addresses []netip.Addr) {
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// parseKey reads what object.ServiceKey has made. Neither part has a dot.
func parseKey(key string) types.NamespacedName {
	name, namespace, _ := strings.Cut(key, ".")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// HasSynced implements records.
func (r *clusterRecords) HasSynced() bool {
	return !slices.ContainsFunc(r.synced, func(one cache.ResourceEventHandlerRegistration) bool { return !one.HasSynced() })
}

// Modified implements records.
func (r *clusterRecords) Modified(kubernetes.ModifiedMode) int64 { return r.modified.Load() }

// SvcIndex implements records.
func (r *clusterRecords) SvcIndex(key string) []*object.Service {
	return stored(r.services, []types.NamespacedName{parseKey(key)}, func(*corev1.Service) bool { return true }, recordOf)
}

// SvcIndexReverse implements records.
func (r *clusterRecords) SvcIndexReverse(ip string) []*object.Service {
	address, _ := netip.ParseAddr(ip) // the zero Addr is nobody's
	r.mu.RLock()
	defer r.mu.RUnlock()
	return stored(r.services, r.serviceOf[address], func(one *corev1.Service) bool { return slices.Contains(clusterIPs(one), address) }, recordOf)
}

// EpIndex implements records.
func (r *clusterRecords) EpIndex(key string) []*object.Endpoints {
	service := parseKey(key)
	r.mu.RLock()
	defer r.mu.RUnlock()
	return stored(r.slices, r.slicesOf[service], func(one *discoveryv1.EndpointSlice) bool { return serviceKey(one) == service }, endpointsOf)
}

// EpIndexReverse implements records.
func (r *clusterRecords) EpIndexReverse(ip string) []*object.Endpoints {
	address, _ := netip.ParseAddr(ip)
	r.mu.RLock()
	defer r.mu.RUnlock()
	return stored(r.slices, r.slicesWith[address], func(one *discoveryv1.EndpointSlice) bool { return slices.Contains(ready(one), address) }, endpointsOf)
}

// stored returns the records of those named objects that a store has and that still belong there.
func stored[T, R any](store cache.Store, names []types.NamespacedName, belongs func(T) bool, record func(T) R) (records []R) {
	for _, name := range names {
		// Reading a store does not fail.
		found, _, _ := store.GetByKey(name.String())
		if one, is := found.(T); is && belongs(one) {
			records = append(records, record(one))
		}
	}
	return records
}

// The next methods are for plugins and options that kedge's Corefile does not name: transfers of zones,
// names outside of the cluster, verified pods, other clusters. For these records are made by CoreDNS
// itself (ownDirective).

// ServiceList implements records.
func (*clusterRecords) ServiceList() []*object.Service { return nil }

// EndpointsList implements records.
func (*clusterRecords) EndpointsList() []*object.Endpoints { return nil }

// SvcExtIndexReverse implements records.
func (*clusterRecords) SvcExtIndexReverse(string) []*object.Service { return nil }

// ServiceImportList implements records.
func (*clusterRecords) ServiceImportList() []*object.ServiceImport { return nil }

// SvcImportIndex implements records.
func (*clusterRecords) SvcImportIndex(string) []*object.ServiceImport { return nil }

// McEpIndex implements records.
func (*clusterRecords) McEpIndex(string) []*object.MultiClusterEndpoints { return nil }

// PodIndex implements records.
func (*clusterRecords) PodIndex(string) []*object.Pod { return nil }

// GetNodeByName implements records. CoreDNS does not call it.
func (*clusterRecords) GetNodeByName(context.Context, string) (*corev1.Node, error) {
	return nil, errors.New("the DNS of a node reads no Nodes")
}

// GetNamespaceByName implements records.
func (r *clusterRecords) GetNamespaceByName(name string) (*object.Namespace, error) {
	if _, exists, err := r.namespaces.GetByKey(name); err != nil || !exists {
		return nil, fmt.Errorf("namespace %s not found", name)
	}
	return &object.Namespace{Name: name}, nil
}

// Run implements records. The records follow the cluster since newRecords.
func (*clusterRecords) Run() {}

// Stop implements records.
func (*clusterRecords) Stop() error { return nil }
