package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
)

// TestDropMatchers routes as the API server does, without regular expressions.
func TestDropMatchers(t *testing.T) {
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	service := new(restful.WebService).Path("/api/v1")
	answer := func(r *restful.Request, w *restful.Response) {
		_, _ = io.WriteString(w, r.PathParameter("name")+r.PathParameter("path"))
	}
	service.Route(service.GET("/pods/{name}").To(answer))
	service.Route(service.GET("/pods/{name}/proxy/{path:*}").To(answer))
	container.Add(service)
	dropMatchers(&genericapiserver.GenericAPIServer{Handler: &genericapiserver.APIServerHandler{GoRestfulContainer: container}})
	for _, route := range service.Routes() {
		if matcher := matcherOf(route); !matcher.IsValid() || !matcher.IsNil() {
			t.Errorf("%s still has its regular expression", route.Path)
		}
	}
	for path, want := range map[string]string{
		"/api/v1/pods/a":             "a",
		"/api/v1/pods/a/proxy/b/c":   "ab/c",
		"/api/v1/nodes/a":            "404: Page Not Found",
		"/api/v1/pods/a/nothing/b/c": "404: Page Not Found",
	} {
		recorder := httptest.NewRecorder()
		container.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if got := recorder.Body.String(); got != want {
			t.Errorf("%s answers %q, not %q", path, got, want)
		}
	}
}

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

// TestDropStacks serves and registers as before, without stack traces.
func TestDropStacks(t *testing.T) {
	paths := mux.NewPathRecorderMux("test")
	paths.Handle("/livez", http.NotFoundHandler())
	if stack := stacksOf(paths).MapIndex(reflect.ValueOf("/livez")); !stack.IsValid() || stack.Len() == 0 {
		t.Fatal("upstream keeps no stack trace of a path any more, or somewhere else")
	}
	dropStacks(&genericapiserver.GenericAPIServer{Handler: &genericapiserver.APIServerHandler{NonGoRestfulMux: paths}})
	if stack := stacksOf(paths).MapIndex(reflect.ValueOf("/livez")); !stack.IsValid() || stack.Len() != 0 {
		t.Errorf("got stack trace %q of /livez, want an empty one", stack)
	}
	paths.Unregister("/livez")
	paths.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	recorder := httptest.NewRecorder()
	paths.ServeHTTP(recorder, httptest.NewRequest("GET", "/livez", nil))
	if got := recorder.Body.String(); got != "ok" {
		t.Errorf("/livez answers %q", got)
	}
}
