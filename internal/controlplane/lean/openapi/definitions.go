package openapi

import (
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// shared is a value that is made on request. After its last use it is kept at
// most until the next garbage collection.
type shared[T any] struct {
	make func() *T

	mu   sync.Mutex
	made weak.Pointer[T]
}

func (s *shared[T]) get() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value := s.made.Value(); value != nil {
		return value
	}
	value := s.make()
	s.made = weak.Make(value)
	return value
}

// Lend lets a server be built with the definitions in config. It returns a
// function that takes them back afterwards.
//
// For server-side apply, upstream makes schemas from the definitions, and type
// converters from the schemas. After that nobody reads the schemas, but they stay
// in an APIGroupInfo that is never freed
// (apiserver/pkg/server/genericapiserver.go, getOpenAPIModels and
// RegisterDestroyFunc). Most of their memory is the properties, 7 MB. The builder
// copies properties only where a reference has siblings (builder3/openapi.go,
// buildDefinitionRecursively). Lend removes such references first. Then the
// schemas share the properties with the definitions, and takeBack can empty them.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer.getOpenAPIModels GenericAPIServer.RegisterDestroyFunc
//upstream:relies-on k8s.io/kube-openapi/pkg/builder3/openapi.go openAPI.buildDefinitionRecursively
//upstream:relies-on k8s.io/kube-openapi/pkg/builder3/util/util.go WrapRefs
func Lend(config *common.OpenAPIV3Config) (takeBack func()) {
	lent := config.Definitions
	for name, definition := range lent {
		definition.Schema = *util.WrapRefs(&definition.Schema)
		lent[name] = definition
	}
	return func() {
		config.Definitions = nil
		for _, definition := range lent {
			clear(definition.Schema.Properties)
		}
	}
}

// Resolver finds schemas of types. It is upstream's, except that it keeps the
// definitions of built-in types, 7 MB, only as long as they are used.
type Resolver struct {
	upstream shared[resolver.SchemaResolver]
}

// NewResolver returns a Resolver that finds built-in types in definitions, by the
// names that schemes give them. It asks others for all other types.
func NewResolver(others resolver.SchemaResolver, definitions common.GetOpenAPIDefinitions, schemes ...*runtime.Scheme) *Resolver {
	r := &Resolver{}
	r.upstream.make = func() *resolver.SchemaResolver {
		made := resolver.NewDefinitionsSchemaResolver(definitions, schemes...).Combine(others)
		return &made
	}
	return r
}

// ResolveSchema implements resolver.SchemaResolver.
func (r *Resolver) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	return (*r.upstream.get()).ResolveSchema(kind)
}
