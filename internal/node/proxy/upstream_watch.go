// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/server.go.

package proxy

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// watchAll feeds the proxier, as Run does in cmd/kube-proxy/app/server.go. Upstream's informers are
// filtered by selectors. The informers here are shared, so their handlers are filtered instead.
//
// The factory must not have been started. Upstream's New functions add handlers to informers, and
// these handlers drop events until the proxier is registered with them (pkg/proxy/config/config.go).
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server.go ProxyServer.Run
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/config/config.go NewEndpointSliceConfig NewServiceConfig NewServiceCIDRConfig NewNodeTopologyConfig
func watchAll(ctx context.Context, factory informers.SharedInformerFactory, local localSlices, addresses func(watch.ServiceHandler) watch.ServiceHandler, proxier proxy.Provider, resync time.Duration) {
	services := watch.NewServiceConfig(ctx, selectedServices{factory.Core().V1().Services()}, resync)
	services.RegisterEventHandler(addresses(proxier))
	endpoints := watch.NewEndpointSliceConfig(ctx, selectedSlices{factory.Discovery().V1().EndpointSlices()}, resync)
	local.EndpointSliceHandler = proxier
	endpoints.RegisterEventHandler(local)
	cidrs := watch.NewServiceCIDRConfig(ctx, factory.Networking().V1().ServiceCIDRs(), resync)
	cidrs.RegisterEventHandler(proxier)
	topology := watch.NewNodeTopologyConfig(ctx, onlyNode(factory.Core().V1().Nodes(), local.nodeName), resync)
	topology.RegisterEventHandler(proxier)

	go services.Run(ctx.Done())
	go endpoints.Run(ctx.Done())
	go cidrs.Run(ctx.Done())
	factory.StartWithContext(ctx)
}

// selected is an informer whose handlers receive only some of the objects. Its store has all of them.
type selected struct {
	cache.SharedIndexInformer
	keep func(metav1.Object) bool
}

func (s selected) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.SharedIndexInformer.AddEventHandler(s.filter(handler))
}

func (s selected) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.SharedIndexInformer.AddEventHandlerWithResyncPeriod(s.filter(handler), resync)
}

func (s selected) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return s.SharedIndexInformer.AddEventHandlerWithOptions(s.filter(handler), options)
}

func (s selected) filter(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.FilteringResourceEventHandler{Handler: handler, FilterFunc: func(object any) bool {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		kept, ok := object.(metav1.Object)
		return ok && s.keep(kept)
	}}
}

// selectedServices selects the Services that kube-proxy must serve.
type selectedServices struct{ coreinformers.ServiceInformer }

func (s selectedServices) Informer() cache.SharedIndexInformer {
	return selected{s.ServiceInformer.Informer(), func(object metav1.Object) bool {
		_, others := object.GetLabels()[apis.LabelServiceProxyName]
		service, ok := object.(*corev1.Service)
		return ok && !others && service.Spec.ClusterIP != corev1.ClusterIPNone
	}}
}

// selectedSlices selects the EndpointSlices of Services that have an address.
type selectedSlices struct {
	discoveryinformers.EndpointSliceInformer
}

func (s selectedSlices) Informer() cache.SharedIndexInformer {
	return selected{s.EndpointSliceInformer.Informer(), func(object metav1.Object) bool {
		_, headless := object.GetLabels()[corev1.IsHeadlessService]
		_, ok := object.(*discoveryv1.EndpointSlice)
		return ok && !headless
	}}
}

// selectedNodes selects one node.
type selectedNodes struct {
	coreinformers.NodeInformer
	name string
}

func onlyNode(nodes coreinformers.NodeInformer, name string) coreinformers.NodeInformer {
	return selectedNodes{nodes, name}
}

func (s selectedNodes) Informer() cache.SharedIndexInformer {
	return selected{s.NodeInformer.Informer(), func(object metav1.Object) bool { return object.GetName() == s.name }}
}
