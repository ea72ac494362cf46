// Follows k8s.io/apiextensions-apiserver v0.37.2, pkg/controller/openapi/controller.go.

package openapi

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// renderCustomV2 returns the one document of all definitions. It leaves out
// definitions that have none.
//
//upstream:follows k8s.io/apiextensions-apiserver/pkg/controller/openapi/controller.go createSpecCache Controller.sync Controller.updateSpecLocked
func renderCustomV2(definitions []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	var documents []*spec.Swagger
	for _, d := range definitions {
		if built, err := buildCustomV2(d); err == nil {
			documents = append(documents, built)
		}
	}
	merged, err := builder.MergeSpecs(&spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
		Definitions: spec.Definitions{},
	}}, documents...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI documents of custom resources: %w", err)
	}
	text, err := merged.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI document of custom resources: %w", err)
	}
	return text, nil
}

// buildCustomV2 returns the document of all versions of a definition.
//
//upstream:follows k8s.io/apiextensions-apiserver/pkg/controller/openapi/controller.go createSpecCache
func buildCustomV2(d *apiextensionsv1.CustomResourceDefinition) (*spec.Swagger, error) {
	merged := &spec.Swagger{}
	for _, version := range d.Spec.Versions {
		if !version.Served {
			continue
		}
		built, err := builder.BuildOpenAPIV2(d, version.Name, builderOptions(true))
		if err != nil {
			return nil, err
		}
		// The document of the built-in APIs, into which this one is merged, has none.
		built.Definitions = handler.PruneDefaults(built.Definitions)
		if merged, err = builder.MergeSpecs(merged, built); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// builderOptions are those of upstream's controllers.
//
//upstream:follows k8s.io/apiextensions-apiserver/pkg/controller/openapi/controller.go createSpecCache
func builderOptions(v2 bool) builder.Options {
	return builder.Options{
		V2:                      v2,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	}
}
