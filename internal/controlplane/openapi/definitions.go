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

// shared is a value that is made when it is wanted and kept no longer than
// until the next garbage collection after its last use.
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

// Lend lets a server be built with the definitions in config, and returns what
// takes them back when it has been.
//
// For server-side apply upstream makes schemas of the definitions, and of those
// its type converters. After that nobody reads the schemas, but they are in an
// APIGroupInfo that is never let go (apiserver/pkg/server/genericapiserver.go,
// getOpenAPIModels and RegisterDestroyFunc). What is in them is the properties,
// 7 MB, which the builder copies only where a reference has siblings
// (builder3/openapi.go, buildDefinitionRecursively). When there is no such
// reference any more the properties are ours, and can be emptied.
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

// Resolver finds schemas of types. It is upstream's, but for that it keeps the
// definitions of built-in types, 7 MB, no longer than it is used.
type Resolver struct {
	upstream shared[resolver.SchemaResolver]
}

// NewResolver looks for a built-in type in definitions, as schemes name it, and
// asks others for any other.
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
