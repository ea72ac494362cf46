package customresources

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/tools/cache"
)

// tableTime is how long the table of known parts is kept after its last use. Operators
// install their definitions within seconds.
const tableTime = time.Minute

// Share makes an informer of CustomResourceDefinitions keep equal parts of their schemas
// once. The same templates of pods, selectors and references are in many of them, and
// each field of a schema takes 512 bytes. A definition whose spec has not changed keeps
// the spec that the informer has already. Nobody may change a definition of the
// informer. It has no managedFields, which nobody reads there. It has all annotations,
// because upstream's controllers write the status with them. Call Share before the
// informer is started.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition/strategy.go statusStrategy.PrepareForUpdate
func Share(informer cache.SharedIndexInformer) error {
	return informer.SetTransform((&sharing{store: informer.GetStore()}).transform)
}

// sharing finds equal parts of schemas.
type sharing struct {
	store cache.Store

	mu sync.Mutex
	// parts is nil while there is nothing to compare. forget makes it nil.
	parts  *parts
	forget *time.Timer
}

// transform implements cache.TransformFunc.
func (s *sharing) transform(object any) (any, error) {
	definition, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return object, nil
	}
	definition.ManagedFields = nil
	if before, found, _ := s.store.GetByKey(definition.Name); found {
		before := before.(*apiextensionsv1.CustomResourceDefinition)
		// A generation has one spec.
		if before.UID == definition.UID && before.Generation == definition.Generation {
			definition.Spec = before.Spec
			return definition, nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use()
	return s.parts.share(definition), nil
}

// use makes the table of the parts of all definitions, unless it is there.
func (s *sharing) use() {
	if s.parts != nil {
		s.forget.Reset(tableTime)
		return
	}
	s.parts = newParts()
	for _, object := range s.store.List() {
		if definition, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
			s.parts.learn(definition)
		}
	}
	s.forget = time.AfterFunc(tableTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parts = nil
	})
}

// digest identifies a part by its content. A hash that somebody can find collisions of
// would let the author of one definition change another.
type digest [sha256.Size]byte

// properties are the fields of an object in a schema.
type properties = map[string]apiextensionsv1.JSONSchemaProps

// parts are the parts of schemas that are known.
type parts struct {
	strings    map[string]string
	schemas    map[digest]*apiextensionsv1.JSONSchemaProps
	properties map[digest]properties
	// learned are the properties that definitions share already, by their address.
	learned map[uintptr]digest
	// rest is a schema without the parts that have a digest of their own. One for all
	// leaves less garbage.
	rest apiextensionsv1.JSONSchemaProps
	// odd counts the schemas that have no JSON.
	odd int
}

func newParts() *parts {
	return &parts{
		strings: map[string]string{}, schemas: map[digest]*apiextensionsv1.JSONSchemaProps{},
		properties: map[digest]properties{}, learned: map[uintptr]digest{},
	}
}

// learn makes the parts of a definition known, and does not change it.
func (p *parts) learn(definition *apiextensionsv1.CustomResourceDefinition) {
	p.visit(definition, false)
}

// share returns a copy of a definition, which nobody else has yet, with known parts in
// place of equal ones.
func (p *parts) share(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	p.visit(definition, true)
	rest := *definition
	rest.Spec.Versions = slices.Clone(rest.Spec.Versions)
	for i := range rest.Spec.Versions {
		rest.Spec.Versions[i].Schema = nil
	}
	shared := rest.DeepCopy()
	for i, version := range definition.Spec.Versions {
		if version.Schema != nil {
			shared.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: version.Schema.OpenAPIV3Schema}
		}
	}
	return shared
}

func (p *parts) visit(definition *apiextensionsv1.CustomResourceDefinition, replace bool) {
	for _, version := range definition.Spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		if schema, _ := p.schema(version.Schema.OpenAPIV3Schema, replace); replace {
			version.Schema.OpenAPIV3Schema = schema
		}
	}
}

// schema returns the known schema with the content of a schema, and its digest.
func (p *parts) schema(schema *apiextensionsv1.JSONSchemaProps, replace bool) (*apiextensionsv1.JSONSchemaProps, digest) {
	sum := p.content(schema, replace)
	known, ok := p.schemas[sum]
	if !ok {
		if known = schema; replace {
			known = &apiextensionsv1.JSONSchemaProps{}
			compact(schema, known)
		}
		p.schemas[sum] = known
	}
	return known, sum
}

// content returns the digest of a schema: two schemas with one digest have the same JSON.
// If replace is true, it replaces the parts of the schema.
func (p *parts) content(schema *apiextensionsv1.JSONSchemaProps, replace bool) digest {
	hash := sha256.New()
	if items := schema.Items; items != nil && items.Schema != nil {
		known, sum := p.schema(items.Schema, replace)
		if replace {
			items.Schema = known
		}
		fmt.Fprintf(hash, "items %x\n", sum)
	}
	if values := schema.AdditionalProperties; values != nil && values.Schema != nil {
		known, sum := p.schema(values.Schema, replace)
		if replace {
			values.Schema = known
		}
		fmt.Fprintf(hash, "values %x\n", sum)
	}
	if len(schema.Properties) > 0 {
		known, sum := p.fields(schema.Properties, replace)
		if replace {
			schema.Properties = known
		}
		fmt.Fprintf(hash, "fields %x\n", sum)
	}
	p.texts(schema, replace)
	p.rest = *schema
	p.rest.Properties = nil
	if p.rest.Items != nil && p.rest.Items.Schema != nil {
		p.rest.Items = nil
	}
	if p.rest.AdditionalProperties != nil && p.rest.AdditionalProperties.Schema != nil {
		p.rest.AdditionalProperties = nil
	}
	text, err := json.Marshal(&p.rest)
	if err != nil {
		// A schema that has no JSON is equal to no other.
		p.odd++
		text = fmt.Appendf(nil, "odd %d", p.odd)
	}
	hash.Write(text)
	return digest(hash.Sum(nil))
}

// fields returns the known properties with the content of properties, and their digest.
func (p *parts) fields(fields properties, replace bool) (properties, digest) {
	if sum, ok := p.learned[reflect.ValueOf(fields).Pointer()]; ok {
		return fields, sum
	}
	hash := sha256.New()
	var field, compacted apiextensionsv1.JSONSchemaProps
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field = fields[name]
		fmt.Fprintf(hash, "%q %x\n", name, p.content(&field, replace))
		if replace {
			fields[name] = field
		}
	}
	sum := digest(hash.Sum(nil))
	known, ok := p.properties[sum]
	if !ok {
		if known = fields; replace {
			known = make(properties, len(fields))
			for name := range fields {
				field = fields[name]
				compact(&field, &compacted)
				known[p.text(name)] = compacted
			}
		}
		p.properties[sum] = known
		p.learned[reflect.ValueOf(known).Pointer()] = sum
	}
	return known, sum
}

// compact makes a copy of a schema with the same parts. The decoder leaves a schema among
// garbage, where it would hold whole pages of memory. The copies of all schemas of a
// definition lie beside each other, because they are made one after the other, and because
// nothing else of their size is made meanwhile.
func compact(schema, into *apiextensionsv1.JSONSchemaProps) {
	rest := *schema
	rest.Properties = nil
	if schema.Items != nil && schema.Items.Schema != nil {
		rest.Items = nil
	}
	if schema.AdditionalProperties != nil {
		rest.AdditionalProperties = nil
	}
	rest.DeepCopyInto(into)
	into.Properties = schema.Properties
	if into.Items == nil && schema.Items != nil {
		into.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: schema.Items.Schema, JSONSchemas: schema.Items.JSONSchemas}
	}
	if values := schema.AdditionalProperties; values != nil {
		into.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: values.Allows, Schema: values.Schema}
	}
}

// texts makes the texts of a schema known. If replace is true, it replaces them.
func (p *parts) texts(schema *apiextensionsv1.JSONSchemaProps, replace bool) {
	texts := []*string{&schema.Description, &schema.Type, &schema.Format, &schema.Pattern}
	for i := range schema.Required {
		texts = append(texts, &schema.Required[i])
	}
	for i := range schema.XListMapKeys {
		texts = append(texts, &schema.XListMapKeys[i])
	}
	if schema.XListType != nil {
		texts = append(texts, schema.XListType)
	}
	for _, text := range texts {
		if !replace {
			p.strings[*text] = *text
			continue
		}
		*text = p.text(*text)
	}
}

// text returns the known text that is equal to a text.
func (p *parts) text(text string) string {
	known, ok := p.strings[text]
	if !ok {
		known = strings.Clone(text)
		p.strings[known] = known
	}
	return known
}
