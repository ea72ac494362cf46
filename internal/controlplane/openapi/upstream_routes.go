// Follows k8s.io/apiserver v0.36.3, pkg/server/routes/openapi.go.

package openapi

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// renderV2 returns the JSON of the server's document. Upstream's InstallV2 ends the
// process if the document cannot be built.
//
//upstream:follows k8s.io/apiserver/pkg/server/routes/openapi.go OpenAPI.InstallV2
func (s *server) renderV2() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	built, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(s.services), &s.v2)
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI document: %w", err)
	}
	built.Definitions = handler.PruneDefaults(built.Definitions)
	text, err := built.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI document: %w", err)
	}
	return text, nil
}

// installCustom gives the server for CustomResourceDefinitions the services that its
// controllers update (apiextensions-apiserver/pkg/apiserver/apiserver.go). Unlike
// upstream's they do not contain the server's own APIs.
//
//upstream:follows k8s.io/apiserver/pkg/server/routes/openapi.go OpenAPI.InstallV2 OpenAPI.InstallV3
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go completedConfig.New
func installCustom(s Server) error {
	s.StaticOpenAPISpec = &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        s.V2.Info,
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
		Definitions: spec.Definitions{},
	}}
	s.OpenAPIVersionedService = handler.NewOpenAPIService(s.StaticOpenAPISpec)
	s.OpenAPIVersionedService.RegisterOpenAPIVersionedService(v2Path, s.Handler.NonGoRestfulMux)
	s.OpenAPIV3VersionedService = handler3.NewOpenAPIService()
	if err := s.OpenAPIV3VersionedService.RegisterOpenAPIV3VersionedService(v3Path, s.Handler.NonGoRestfulMux); err != nil {
		return fmt.Errorf("install OpenAPI documents of custom resources: %w", err)
	}
	return nil
}
