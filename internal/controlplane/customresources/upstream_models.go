// Follows k8s.io/apiserver v0.36.3, pkg/server/genericapiserver.go.

package customresources

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	builder "k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// staticModels returns the types that upstream's server gives to its handler: those of
// CustomResourceDefinitions, which have those of metadata among them.
//
//upstream:follows k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer.getOpenAPIModels getResourceNamesForGroup
func staticModels(config *common.OpenAPIV3Config) (map[string]*spec.Schema, error) {
	models, err := builder.BuildOpenAPIDefinitionsForResources(config, util.GetCanonicalTypeName(&apiextensionsv1.CustomResourceDefinition{}))
	if err != nil {
		return nil, fmt.Errorf("build types of metadata: %w", err)
	}
	return models, nil
}
