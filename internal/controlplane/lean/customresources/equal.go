package customresources

import (
	"hash/maphash"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// knownTexts and knownValues limit how much of a kind is remembered for comparison.
	knownTexts  = 512
	knownValues = 1024
	// longestText is the length in bytes of the longest text that is remembered.
	longestText = 64
	// largestPart is how many values a part has at most that is remembered.
	largestPart = 256
)

// WithEqualParts returns an AttrFunc for the watch cache of a kind. The watch cache calls it
// once for each object, just before it keeps the object. The function replaces the parts of a
// custom resource that are equal to parts of other objects by those parts. Many objects of
// a kind have the same managedFields, and each version of an object repeats most of the version
// before. Nobody changes an object of a watch cache: what is to be changed is copied first.
// Objects of other types stay as they are.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/watch_cache.go watchCache.processEvent watchCache.Replace
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/delegator.go CacheDelegator.GuaranteedUpdate CacheDelegator.Delete
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/conversion/converter.go safeConverterWrapper.ConvertToVersion safeConverterWrapper.Convert
func WithEqualParts(attributes storage.AttrFunc) storage.AttrFunc {
	known := &equalParts{seed: maphash.MakeSeed(), keys: [2]uint64{rand.Uint64(), rand.Uint64()}, texts: map[string]any{}, values: map[uint64]any{}}
	return func(object runtime.Object) (labels.Set, fields.Set, error) {
		if custom, ok := object.(*unstructured.Unstructured); ok {
			custom.Object = known.object(custom.Object)
		}
		return attributes(object)
	}
}

// equalParts are parts of the objects of a kind. It is for one goroutine.
type equalParts struct {
	seed  maphash.Seed
	keys  [2]uint64
	texts map[string]any
	// values are maps and slices, by their hash. An equal hash does not mean that values are equal.
	values map[uint64]any
}

// object returns a copy of an object, or of its metadata, with known parts. No other object
// is equal to it as a whole.
func (p *equalParts) object(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	made := make(map[string]any, len(object))
	for name, value := range object {
		key := p.text(name)
		if metadata, ok := value.(map[string]any); ok && name == "metadata" {
			made[key] = p.object(metadata)
			continue
		}
		made[key] = p.part(value).value
	}
	return made
}

// part is a value of JSON.
type part struct {
	value any
	hash  uint64
	// size counts the values in the value. A part that must not be remembered has none.
	size int
}

// part returns the known part that is equal to a value.
func (p *equalParts) part(value any) part {
	switch v := value.(type) {
	case map[string]any:
		if v != nil {
			return p.fields(v)
		}
	case []any:
		if v != nil {
			return p.elements(v)
		}
	case string:
		if len(v) <= longestText {
			return part{p.known(v), p.mix('s', maphash.String(p.seed, v)), 1}
		}
	case int64:
		return part{v, p.mix('i', uint64(v)), 1}
	case float64:
		return part{v, p.mix('f', math.Float64bits(v)), 1}
	case bool:
		if v {
			return part{v, p.mix('b', 1), 1}
		}
		return part{v, p.mix('b', 0), 1}
	case nil:
		return part{nil, p.mix('n', 0), 1}
	}
	return part{value: value}
}

func (p *equalParts) fields(values map[string]any) part {
	all := collected{small: true}
	made := make(map[string]any, len(values))
	for name, value := range values {
		one := p.part(value)
		made[p.text(name)] = one.value
		all.hash += p.mix(maphash.String(p.seed, name), one.hash)
		all.count(one)
	}
	return p.remember(made, p.mix('m', all.hash), all)
}

func (p *equalParts) elements(values []any) part {
	all := collected{small: true}
	made := make([]any, len(values))
	for i, value := range values {
		one := p.part(value)
		made[i] = one.value
		all.hash = p.mix(all.hash, one.hash)
		all.count(one)
	}
	return p.remember(made, p.mix('l', all.hash), all)
}

// collected is what the parts of a map or a slice have in common.
type collected struct {
	hash  uint64
	size  int
	small bool
}

func (c *collected) count(one part) {
	c.size += one.size
	c.small = c.small && one.size > 0 && c.size < largestPart
}

// remember returns the known part that is equal to a map or a slice.
func (p *equalParts) remember(value any, hash uint64, all collected) part {
	if !all.small {
		return part{value: value}
	}
	known, found := p.values[hash]
	if found && equal(known, value) {
		return part{known, hash, all.size + 1}
	}
	if !found {
		makeRoom(p.values, knownValues)
	}
	p.values[hash] = value
	return part{value, hash, all.size + 1}
}

// text returns the known text that is equal to a text.
func (p *equalParts) text(text string) string { return p.known(text).(string) }

func (p *equalParts) known(text string) any {
	if known, found := p.texts[text]; found {
		return known
	}
	if len(text) <= longestText {
		makeRoom(p.texts, knownTexts)
		p.texts[text] = text
		return p.texts[text]
	}
	return text
}

// makeRoom deletes one entry of a full table, whichever comes first. If the entry is a common one, the
// next object brings it back.
func makeRoom[K comparable](table map[K]any, most int) {
	if len(table) < most {
		return
	}
	for key := range table {
		delete(table, key)
		return
	}
}

// mix returns a hash of two hashes.
func (p *equalParts) mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^p.keys[0], b^p.keys[1])
	return high ^ low
}

// equal compares two maps or two slices. Their own parts are known already, so those that are equal
// are one.
func equal(a, b any) bool {
	switch first := a.(type) {
	case map[string]any:
		second, ok := b.(map[string]any)
		return ok && maps.EqualFunc(first, second, same)
	case []any:
		second, ok := b.([]any)
		return ok && slices.EqualFunc(first, second, same)
	}
	return false
}

// same tells whether two parts are one, or are equal scalars.
func same(a, b any) bool {
	switch first := a.(type) {
	case map[string]any:
		second, ok := b.(map[string]any)
		return ok && reflect.ValueOf(first).Pointer() == reflect.ValueOf(second).Pointer()
	case []any:
		second, ok := b.([]any)
		return ok && len(first) == len(second) && (len(first) == 0 || &first[0] == &second[0])
	}
	return a == b
}
