package lean

import (
	"fmt"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apiserveropenapi "k8s.io/apiserver/pkg/util/openapi"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
)

// leanOpenAPI keeps the two inner servers from installing OpenAPI documents:
// createServerChain installs documents that are made on request. It also gives the
// two small servers the definitions of their own types only, in place of all 1500.
func leanOpenAPI(core, apiExtensions, aggregator *genericapiserver.Config) {
	core.SkipOpenAPIInstallation, apiExtensions.SkipOpenAPIInstallation = true, true
	// If this function is nil, builders set one that keeps everything that they have
	// built in memory (kube-openapi/pkg/builder/openapi.go and builder3/openapi.go,
	// newOpenAPI).
	//upstream:relies-on k8s.io/kube-openapi/pkg/builder/openapi.go newOpenAPI
	//upstream:relies-on k8s.io/kube-openapi/pkg/builder3/openapi.go newOpenAPI
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

// operationIDAndTags names an operation by the function that upstream's servers use.
func operationIDAndTags(route common.Route) (string, []string, error) {
	adapter, ok := route.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("name OpenAPI operation: the route is a %T", route)
	}
	return apiopenapi.GetOperationIDAndTags(adapter.Route)
}
