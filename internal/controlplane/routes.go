package controlplane

import (
	"reflect"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
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
