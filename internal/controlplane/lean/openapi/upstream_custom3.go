// Follows k8s.io/apiextensions-apiserver v0.37.2, pkg/controller/openapiv3/controller.go.

package openapi

import (
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/spec3"
)

// renderCustomV3 returns the document of one version that all of the definitions
// serve. Like upstream's controller it leaves out definitions that have no document,
// or have a schema of the same name as another.
//
//upstream:follows k8s.io/apiextensions-apiserver/pkg/controller/openapiv3/controller.go Controller.sync Controller.updateGroupVersion Controller.buildV3Spec
func renderCustomV3(definitions []*apiextensionsv1.CustomResourceDefinition, version string) ([]byte, error) {
	var documents []*spec3.OpenAPI
	merged := &spec3.OpenAPI{}
	for _, d := range definitions {
		built, err := builder.BuildOpenAPIV3(d, version, builderOptions(false))
		if err != nil {
			continue
		}
		added, err := builder.MergeSpecsV3(append(documents, built)...)
		if err != nil {
			continue
		}
		documents, merged = append(documents, built), added
	}
	text, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI document: %w", err)
	}
	return text, nil
}
