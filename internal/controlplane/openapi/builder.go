package openapi

import (
	"fmt"
	_ "unsafe" // for go:linkname

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/common"
)

// typeMeta is the only definition that upstream's builder looks up.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder/builder.go getDefinition addTypeMetaProperties addEmbeddedProperties
const typeMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta"

// These are variables of upstream's builder of documents of
// CustomResourceDefinitions. It fills them at its first use, which also is the first
// request for a custom resource, and keeps them.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder/builder.go definitions definitionsV3 generateBuildDefinitionsFunc
var (
	//go:linkname builderDefinitions k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder.definitions
	builderDefinitions map[string]common.OpenAPIDefinition
	//go:linkname builderDefinitionsV3 k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder.definitionsV3
	builderDefinitionsV3 map[string]common.OpenAPIDefinition
)

// trimBuilder lets upstream's builder forget definitions that it never looks up,
// 1 MiB. It must be called before the builder is used elsewhere.
func trimBuilder() error {
	if len(builderDefinitions) == 1 {
		return nil
	}
	// The first use fills the variables.
	first := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Names:    apiextensionsv1.CustomResourceDefinitionNames{Kind: "First"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}},
	}}
	if _, err := builder.BuildOpenAPIV3(first, "v1", builder.Options{}); err != nil {
		return fmt.Errorf("build first OpenAPI document: %w", err)
	}
	for _, definitions := range []*map[string]common.OpenAPIDefinition{&builderDefinitions, &builderDefinitionsV3} {
		only, found := (*definitions)[typeMeta]
		if !found {
			return fmt.Errorf("trim OpenAPI builder: it has no definition of %s", typeMeta)
		}
		*definitions = map[string]common.OpenAPIDefinition{typeMeta: only}
	}
	return nil
}
