// Follows k8s.io/kube-openapi v0.0.0-20260821135717-be32def86098, pkg/builder3/openapi.go.

package openapi

import (
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// definitionsV3 returns the definitions of all types, as upstream's newOpenAPI makes
// them if the configuration has none.
//
//upstream:follows k8s.io/kube-openapi/pkg/builder3/openapi.go newOpenAPI
func definitionsV3(config *common.OpenAPIV3Config) map[string]common.OpenAPIDefinition {
	return config.GetDefinitions(func(name string) spec.Ref {
		short, _ := config.GetDefinitionName(name)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(short))
	})
}
