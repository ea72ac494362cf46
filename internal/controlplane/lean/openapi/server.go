package openapi

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	restful "github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kube-openapi/pkg/common"
)

// server renders documents of one server's own APIs.
type server struct {
	services []*restful.WebService

	// mu is held while rendering: builders write to their configuration and to
	// the definitions.
	mu sync.Mutex
	v2 common.Config
	v3 common.OpenAPIV3Config
	// definitions are for v3. They are shared, because clients tend to ask for
	// several documents one after another.
	definitions shared[map[string]common.OpenAPIDefinition]
}

func newServer(s Server) *server {
	r := &server{services: s.Handler.GoRestfulContainer.RegisteredWebServices(), v2: *s.V2, v3: *s.V3}
	r.definitions.make = func() *map[string]common.OpenAPIDefinition {
		definitions := definitionsV3(&r.v3)
		return &definitions
	}
	return r
}

// renderV3 returns the document of one service. It lets upstream install the
// document on a temporary server.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/routes/openapi.go OpenAPI.InstallV3
func (s *server) renderV3(service *restful.WebService) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	definitions := s.definitions.get()
	s.v3.Definitions = *definitions
	defer func() { s.v3.Definitions = nil }()
	paths := mux.NewPathRecorderMux("openapi")
	routes.OpenAPI{V3Config: &s.v3}.InstallV3(restful.NewContainer().Add(service), paths)
	request, err := http.NewRequest(http.MethodGet, v3Path+service.RootPath(), nil)
	if err != nil {
		return nil, fmt.Errorf("get OpenAPI document: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	response := responsewriter.NewInMemoryResponseWriter()
	paths.ServeHTTP(response, request)
	if response.RespCode() != http.StatusOK || len(response.Data()) == 0 {
		return nil, errors.New("upstream's builder failed; the log says why")
	}
	return response.Data(), nil
}
