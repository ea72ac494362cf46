// Follows k8s.io/kubernetes v1.37.2, cmd/kube-apiserver/app/server.go.

package apiserver

import (
	"fmt"
	"net/http"
	_ "unsafe" // for go:linkname

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kedge-dev/kedge/internal/controlplane/customresources"
	"github.com/kedge-dev/kedge/internal/controlplane/openapi"
)

// createServerChain completes the configuration and creates the chain of servers, as
// upstream's Run does. Their OpenAPI documents are made on request, for which it needs
// the informer that upstream's CreateServerChain does not return. Their reconciler of
// endpoints does not delay a stop. The core also serves the API group of metrics, unless
// it is nil. It stands behind the aggregator, so that an APIService of the user for the
// same group wins. Custom resources are served by kedge's handler, which keeps nothing for
// kinds that are not used, and which is returned too. direct is nil if the datastore is not in this process.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-apiserver/app/server.go Run CreateServerChain
//upstream:relies-on k8s.io/kube-aggregator/pkg/apiserver/apiserver.go APIAggregator.AddAPIService
func createServerChain(config *app.Config, metrics *genericapiserver.APIGroupInfo, direct *directStorage) (*aggregator.APIAggregator, *customresources.Handler, error) {
	core, extensions := config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions.GenericConfig
	outermost := config.Aggregator.GenericConfig
	documents := &openapi.Documents{}
	extensions.LoopbackClientConfig = rest.CopyConfig(extensions.LoopbackClientConfig)
	extensions.LoopbackClientConfig.Wrap(customresources.Lean)
	handlerChain := outermost.BuildHandlerChainFunc
	outermost.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return handlerChain(documents.Wrap(handler), c)
	}
	completed, err := config.Complete()
	if err != nil {
		return nil, nil, err
	}
	reconciler := &completed.KubeAPIs.EndpointReconcilerConfig.Reconciler
	*reconciler = &endpointReconciler{EndpointReconciler: *reconciler}
	takeBack := openapi.Lend(core.OpenAPIV3Config)
	notFound := notfoundhandler.New(core.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	extensionsServer, custom, err := newExtensionsServer(completed.ApiExtensions, genericapiserver.NewEmptyDelegateWithCustomHandler(notFound), direct)
	if err != nil {
		return nil, nil, err
	}
	kubeServer, err := completed.KubeAPIs.New(extensionsServer.GenericAPIServer)
	if err != nil {
		return nil, nil, err
	}
	coreServer, definitions := kubeServer.ControlPlane.GenericAPIServer, extensionsServer.Informers.Apiextensions().V1().CustomResourceDefinitions()
	served := extensions.MergedResourceConfig.ResourceEnabled(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	server, err := controlplaneapiserver.CreateAggregatorServer(completed.Aggregator, coreServer, definitions, served, apiVersionPriorities)
	if err != nil {
		return nil, nil, err
	}
	if metrics != nil {
		if err := coreServer.InstallAPIGroup(metrics); err != nil {
			return nil, nil, fmt.Errorf("install metrics API: %w", err)
		}
	}
	takeBack()
	shareParameters(server.GenericAPIServer, coreServer, extensionsServer.GenericAPIServer)
	return server, custom, documents.Install(
		openapi.Server{GenericAPIServer: coreServer, V2: core.OpenAPIConfig, V3: core.OpenAPIV3Config},
		openapi.Server{GenericAPIServer: extensionsServer.GenericAPIServer, V2: extensions.OpenAPIConfig, V3: extensions.OpenAPIV3Config},
		definitions, utilfeature.DefaultMutableFeatureGate)
}

// apiVersionPriorities is upstream's table of the order of API groups.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kube-apiserver/app/aggregator.go apiVersionPriorities
//go:linkname apiVersionPriorities k8s.io/kubernetes/cmd/kube-apiserver/app.apiVersionPriorities
var apiVersionPriorities map[schema.GroupVersion]controlplaneapiserver.APIServicePriority
