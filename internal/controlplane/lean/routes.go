package lean

import (
	"reflect"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// shareParameters makes routes share the objects that describe equal parameters, which
// frees 1 MiB. Only OpenAPI reads them.
func shareParameters(servers ...*genericapiserver.GenericAPIServer) {
	type name struct {
		kind int
		name string
	}
	known := map[name][]*restful.Parameter{}
	share := func(p *restful.Parameter) *restful.Parameter {
		data := p.Data()
		alike := name{data.Kind, data.Name}
		for _, k := range known[alike] {
			if reflect.DeepEqual(k.Data(), data) {
				return k
			}
		}
		known[alike] = append(known[alike], p)
		return p
	}
	for _, server := range servers {
		for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
			for _, route := range service.Routes() {
				for i, p := range route.ParameterDocs {
					route.ParameterDocs[i] = share(p)
				}
			}
		}
	}
}
