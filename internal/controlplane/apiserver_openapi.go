package controlplane

import (
	"fmt"
	"net/http"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	apiserveropenapi "k8s.io/apiserver/pkg/util/openapi"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"github.com/kedge-dev/kedge/internal/controlplane/openapi"
)

// leanOpenAPI tells the inner servers to install no OpenAPI documents, see
// createServerChain, and the two small ones to make theirs with the definitions
// of their own types only, generated from the same sources as the 1500 of all.
func leanOpenAPI(core, apiExtensions, aggregator *genericapiserver.Config) {
	core.SkipOpenAPIInstallation, apiExtensions.SkipOpenAPIInstallation = true, true
	// Builders would put a function there which holds all they have built
	// (kube-openapi/pkg/builder/openapi.go and builder3/openapi.go, newOpenAPI).
	core.OpenAPIConfig.GetOperationIDAndTags, core.OpenAPIConfig.GetOperationIDAndTagsFromRoute = nil, operationIDAndTags
	core.OpenAPIV3Config.GetOperationIDAndTags, core.OpenAPIV3Config.GetOperationIDAndTagsFromRoute = nil, operationIDAndTags
	own := func(config *genericapiserver.Config, definitions common.GetOpenAPIDefinitions) {
		v2, v3 := *core.OpenAPIConfig, *core.OpenAPIV3Config
		definitions = apiserveropenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(definitions)
		v2.GetDefinitions, v3.GetDefinitions, v3.Definitions = definitions, definitions, nil
		config.OpenAPIConfig, config.OpenAPIV3Config = &v2, &v3
	}
	own(apiExtensions, apiextensionsopenapi.GetOpenAPIDefinitions)
	own(aggregator, aggregatoropenapi.GetOpenAPIDefinitions)
}

// operationIDAndTags names an operation as upstream does.
func operationIDAndTags(route common.Route) (string, []string, error) {
	adapter, ok := route.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("name OpenAPI operation: the route is a %T", route)
	}
	return apiopenapi.GetOperationIDAndTags(adapter.Route)
}

// createServerChain is upstream's, with OpenAPI documents that are made when
// they are wanted, and a reconciler of endpoints that does not hold up a stop.
func createServerChain(config *app.Config) (*aggregator.APIAggregator, error) {
	core, extensions := config.KubeAPIs.ControlPlane.Generic, config.ApiExtensions.GenericConfig
	outermost := config.Aggregator.GenericConfig
	documents := &openapi.Documents{}
	handlerChain := outermost.BuildHandlerChainFunc
	outermost.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return handlerChain(documents.Wrap(handler), c)
	}
	completed, err := config.Complete()
	if err != nil {
		return nil, err
	}
	reconciler := &completed.KubeAPIs.EndpointReconcilerConfig.Reconciler
	*reconciler = &endpointReconciler{EndpointReconciler: *reconciler}
	takeBack := openapi.Lend(core.OpenAPIV3Config)
	server, err := app.CreateServerChain(completed)
	if err != nil {
		return nil, err
	}
	takeBack()
	coreServer, err := delegateOf(server.GenericAPIServer)
	if err != nil {
		return nil, err
	}
	extensionsServer, err := delegateOf(coreServer)
	if err != nil {
		return nil, err
	}
	dropMatchers(server.GenericAPIServer, coreServer, extensionsServer)
	shareParameters(server.GenericAPIServer, coreServer, extensionsServer)
	return server, documents.Install(
		openapi.Server{GenericAPIServer: coreServer, V2: core.OpenAPIConfig, V3: core.OpenAPIV3Config},
		openapi.Server{GenericAPIServer: extensionsServer, V2: extensions.OpenAPIConfig, V3: extensions.OpenAPIV3Config},
		utilfeature.DefaultMutableFeatureGate)
}

// delegateOf returns the next server of the chain.
func delegateOf(server *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error) {
	delegate, ok := server.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return nil, fmt.Errorf("install OpenAPI documents: the server's delegate is a %T", server.NextDelegate())
	}
	return delegate, nil
}
