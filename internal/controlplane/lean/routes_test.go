package lean

import (
	"reflect"
	"testing"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// TestShareParameters shares equal parameters, and no others.
func TestShareParameters(t *testing.T) {
	service := new(restful.WebService).Path("/api/v1")
	route := func(path string, watch *restful.Parameter) {
		service.Route(service.GET(path).To(func(*restful.Request, *restful.Response) {}).
			Param(service.QueryParameter("pretty", "whether it is indented")).Param(watch))
	}
	route("/pods", service.QueryParameter("watch", "changes too").DataType("boolean"))
	route("/nodes", service.QueryParameter("watch", "changes too").DataType("boolean"))
	route("/events", service.QueryParameter("watch", "changes too").DataType("string"))
	container := restful.NewContainer()
	container.Add(service)
	var before []restful.ParameterData
	for _, route := range service.Routes() {
		for _, p := range route.ParameterDocs {
			before = append(before, p.Data())
		}
	}
	shareParameters(&genericapiserver.GenericAPIServer{Handler: &genericapiserver.APIServerHandler{GoRestfulContainer: container}})
	var after []restful.ParameterData
	objects := map[*restful.Parameter]bool{}
	for _, route := range service.Routes() {
		for _, p := range route.ParameterDocs {
			after = append(after, p.Data())
			objects[p] = true
		}
	}
	if !reflect.DeepEqual(before, after) {
		t.Errorf("\n got %v\nwant %v", after, before)
	}
	if len(objects) != 3 {
		t.Errorf("%d objects describe 3 parameters", len(objects))
	}
}
