// Follows k8s.io/kubernetes v1.37.2, cmd/kube-apiserver/app/server.go.

package apiserver

import (
	"context"
	"fmt"
	_ "unsafe" // for go:linkname

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kedge-dev/kedge/internal/controlplane/lean"
)

// createServerChain completes the configuration and creates the chain of servers, as
// upstream's Run does. Hooks need the informer that upstream's CreateServerChain does not return.
// The reconciler of endpoints does not delay a stop. The core also serves the API group of
// metrics, unless it is nil. It stands behind the aggregator, so that an APIService of the user for
// the same group wins. unused tells whether a resource is one of custom resources without objects.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-apiserver/app/server.go Run CreateServerChain
//upstream:relies-on k8s.io/kube-aggregator/pkg/apiserver/apiserver.go APIAggregator.AddAPIService
func createServerChain(config *app.Config, metrics *genericapiserver.APIGroupInfo, hooks *lean.Hooks, stored lean.Storage) (
	server *aggregator.APIAggregator, unused func(context.Context, schema.GroupResource) bool, err error,
) {
	core, extensions := config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions.GenericConfig
	outermost := config.Aggregator.GenericConfig
	hooks.Configure(core, &extensions.Config, &outermost.Config)
	completed, err := config.Complete()
	if err != nil {
		return nil, nil, err
	}
	reconciler := &completed.KubeAPIs.EndpointReconcilerConfig.Reconciler
	*reconciler = &endpointReconciler{EndpointReconciler: *reconciler}
	takeBack := hooks.Lend(core)
	notFound := notfoundhandler.New(core.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	extensionsServer, unused, err := hooks.Extensions(completed.ApiExtensions, genericapiserver.NewEmptyDelegateWithCustomHandler(notFound), stored)
	if err != nil {
		return nil, nil, err
	}
	kubeServer, err := completed.KubeAPIs.New(extensionsServer.GenericAPIServer)
	if err != nil {
		return nil, nil, err
	}
	coreServer, definitions := kubeServer.ControlPlane.GenericAPIServer, extensionsServer.Informers.Apiextensions().V1().CustomResourceDefinitions()
	served := extensions.MergedResourceConfig.ResourceEnabled(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	server, err = controlplaneapiserver.CreateAggregatorServer(completed.Aggregator, coreServer, definitions, served, apiVersionPriorities)
	if err != nil {
		return nil, nil, err
	}
	if metrics != nil {
		if err := coreServer.InstallAPIGroup(metrics); err != nil {
			return nil, nil, fmt.Errorf("install metrics API: %w", err)
		}
	}
	takeBack()
	return server, unused, hooks.Built(lean.Chain{
		Core: coreServer, CoreConfig: core, Extensions: extensionsServer.GenericAPIServer, ExtensionsConfig: &extensions.Config,
		Outermost: server.GenericAPIServer, Definitions: definitions,
	})
}

// apiVersionPriorities is upstream's table of the order of API groups.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kube-apiserver/app/aggregator.go apiVersionPriorities
//go:linkname apiVersionPriorities k8s.io/kubernetes/cmd/kube-apiserver/app.apiVersionPriorities
var apiVersionPriorities map[schema.GroupVersion]controlplaneapiserver.APIServicePriority
