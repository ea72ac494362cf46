package apiserver

import (
	"reflect"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
)

// dropMatchers frees the regular expressions that go-restful compiles for the 1500
// routes of a server, 5 MiB. The API server's CurlyRouter does not use them: it compares
// the parts of a path (go-restful's route.go and curly.go). A test fails if that changes.
//
//upstream:relies-on github.com/emicklei/go-restful/v3/curly.go
func dropMatchers(servers ...*genericapiserver.GenericAPIServer) {
	for _, server := range servers {
		for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
			for _, route := range service.Routes() {
				if matcher := matcherOf(route); matcher.IsValid() {
					matcher.SetZero()
				}
			}
		}
	}
}

// matcherOf returns route.pathExpr.Matcher.
//
//upstream:relies-on github.com/emicklei/go-restful/v3/path_expression.go pathExpression
//upstream:relies-on github.com/emicklei/go-restful/v3/route.go Route
func matcherOf(route restful.Route) reflect.Value {
	expression := reflect.ValueOf(route).FieldByName("pathExpr")
	if expression.Kind() != reflect.Pointer || expression.IsNil() {
		return reflect.Value{}
	}
	return reflect.NewAt(expression.Type().Elem(), expression.UnsafePointer()).Elem().FieldByName("Matcher")
}

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

// dropStacks frees the stack traces of where each path of a chain of servers was
// registered, 1 MiB. They are for the message about a second registration only. A test
// fails if upstream keeps them elsewhere.
func dropStacks(outermost *genericapiserver.GenericAPIServer) {
	for server, ok := outermost, true; ok; server, ok = server.NextDelegate().(*genericapiserver.GenericAPIServer) {
		stacks := stacksOf(server.Handler.NonGoRestfulMux)
		for _, path := range stacks.MapKeys() {
			stacks.SetMapIndex(path, reflect.ValueOf(""))
		}
	}
}

// stacksOf returns paths.pathStacks, or an empty map if there is no such field.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/mux/pathrecorder.go PathRecorderMux PathRecorderMux.trackCallers
func stacksOf(paths *mux.PathRecorderMux) reflect.Value {
	field := reflect.ValueOf(paths).Elem().FieldByName("pathStacks")
	if !field.IsValid() || field.Type() != reflect.TypeFor[map[string]string]() {
		return reflect.ValueOf(map[string]string(nil))
	}
	return reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
}
