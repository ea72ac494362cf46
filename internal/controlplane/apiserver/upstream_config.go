// Follows k8s.io/kubernetes v1.37.2, cmd/kube-apiserver/app/config.go.

package apiserver

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// newConfig does what upstream's NewConfig does. The API server calls itself by
// loopback, and its informers are those of the cache that newConfig returns, which
// ends with ctx. Unless the user configures an egress selector, the server dials by
// egress, a function in this process: upstream can only dial through a proxy's socket.
// transform changes objects for these informers. further are the types of APIs that upstream's servers do not have.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-apiserver/app/config.go NewConfig
func newConfig(ctx context.Context, opts options.CompletedOptions, egress Egress, loopback http.RoundTripper, transform cache.TransformFunc, further ...*runtime.Scheme) (*app.Config, *objectcache.Cache, error) {
	generic, storage, objects, err := newGenericConfig(ctx, opts, loopback, transform, further)
	if err != nil {
		return nil, nil, err
	}
	informers := objects.View(ctx, objectcache.Options{Resync: resyncPeriod})
	if err := applyReaders(opts, generic, informers); err != nil {
		return nil, nil, err
	}
	if generic.EgressSelector == nil && egress.Tunnels != nil {
		dialer, err := newEgressDialer(egress, informers.Core().V1())
		if err != nil {
			return nil, nil, err
		}
		generic.EgressSelector = egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{
			egressselector.Cluster: dialer.DialContext,
		})
		generic.BuildHandlerChainFunc = dialer.resolveNodes(generic.BuildHandlerChainFunc)
	}
	kubeAPIs, resolver, initializer, err := app.CreateKubeAPIServerConfig(opts, generic, informers, storage)
	if err != nil {
		return nil, nil, err
	}
	core := kubeAPIs.ControlPlane
	apiExtensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(*core.Generic, core.VersionedInformers, initializer,
		opts.CompletedOptions, opts.MasterCount, resolver,
		webhook.NewDefaultAuthenticationInfoResolverWrapper(core.ProxyTransport, core.Generic.EgressSelector, core.Generic.LoopbackClientConfig, core.Generic.TracerProvider))
	if err != nil {
		return nil, nil, err
	}
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*core.Generic, opts.CompletedOptions, core.VersionedInformers,
		resolver, core.ProxyTransport, core.Extra.PeerProxy, initializer)
	if err != nil {
		return nil, nil, err
	}
	return &app.Config{Options: opts, KubeAPIs: kubeAPIs, ApiExtensions: apiExtensions, Aggregator: aggregator}, objects, nil
}
