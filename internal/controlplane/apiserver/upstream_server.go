// Follows k8s.io/kubernetes v1.36.3, cmd/kube-apiserver/app/server.go.

package apiserver

import (
	"fmt"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"github.com/kedge-dev/kedge/internal/controlplane/openapi"
)

// createServerChain completes the configuration and creates the chain of servers, as
// upstream's Run does. Their OpenAPI documents are made on request, and their
// reconciler of endpoints does not delay a stop. The core also serves the API group of
// metrics, unless it is nil. It stands behind the aggregator, so that an APIService of
// the user for the same group wins.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-apiserver/app/server.go Run CreateServerChain
//upstream:relies-on k8s.io/kube-aggregator/pkg/apiserver/apiserver.go APIAggregator.AddAPIService
func createServerChain(config *app.Config, metrics *genericapiserver.APIGroupInfo) (*aggregator.APIAggregator, error) {
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
	coreServer, err := delegateOf(server.GenericAPIServer)
	if err != nil {
		return nil, err
	}
	if metrics != nil {
		if err := coreServer.InstallAPIGroup(metrics); err != nil {
			return nil, fmt.Errorf("install metrics API: %w", err)
		}
	}
	takeBack()
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
