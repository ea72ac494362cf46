package apiserver

import (
	"reflect"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
)

// dropMatchers gives back the regular expression that go-restful compiles for
// each of the 1500 routes of a server, 5 MiB: the API server's CurlyRouter
// compares the parts of a path (route.go and curly.go there). A test says when
// that is no longer so.
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

// matcherOf is route.pathExpr.Matcher.
func matcherOf(route restful.Route) reflect.Value {
	expression := reflect.ValueOf(route).FieldByName("pathExpr")
	if expression.Kind() != reflect.Pointer || expression.IsNil() {
		return reflect.Value{}
	}
	return reflect.NewAt(expression.Type().Elem(), expression.UnsafePointer()).Elem().FieldByName("Matcher")
}

// shareParameters has equal parameters of the routes of servers described by the
// same object, of which each route has its own: 1 MiB. OpenAPI alone reads them.
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

// dropStacks gives back the stack traces of where each path of a chain of servers
// was registered, 1 MiB: they are for the message that tells of a second
// registration. A test says when they are kept somewhere else.
func dropStacks(outermost *genericapiserver.GenericAPIServer) {
	for server, ok := outermost, true; ok; server, ok = server.NextDelegate().(*genericapiserver.GenericAPIServer) {
		stacks := stacksOf(server.Handler.NonGoRestfulMux)
		for _, path := range stacks.MapKeys() {
			stacks.SetMapIndex(path, reflect.ValueOf(""))
		}
	}
}

func stacksOf(paths *mux.PathRecorderMux) reflect.Value {
	field := reflect.ValueOf(paths).Elem().FieldByName("pathStacks")
	if !field.IsValid() || field.Type() != reflect.TypeFor[map[string]string]() {
		return reflect.ValueOf(map[string]string(nil))
	}
	return reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
}
