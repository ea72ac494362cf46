// Follows k8s.io/apiserver v0.37.2, pkg/server/routes/openapi.go.

package openapi

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
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
