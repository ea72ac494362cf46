package customresources

import (
	"reflect"
	"testing"
)

// FuzzEqualParts takes the parts of one object into account for another one. Both stay
// what they were.
func FuzzEqualParts(f *testing.F) {
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"a":[1,{}]}}`), []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"a":[1,[]]}}`))
	f.Add([]byte(`{"metadata":[{"metadata":{}}]}`), []byte(`{"metadata":null,"":{"":0}}`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		share := WithEqualParts(noAttributes)
		for _, text := range [][]byte{first, second, first} {
			object := decoded(t, text)
			withEqualParts(t, share, object)
			if want := decoded(t, text); !reflect.DeepEqual(object, want) {
				t.Errorf("%s has become %v", text, object)
			}
		}
	})
}
