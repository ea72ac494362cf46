package shelf

import (
	"bytes"
	"strings"
	"testing"
)

type thing struct {
	number int
	name   string
	value  []byte
}

// Things on a shelf do not touch one another, nor what they were copied from.
func TestShelf(t *testing.T) {
	var s Shelf[thing]
	var kept []*thing
	value := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*i%3000) }
	name := func(i int) string { return strings.Repeat("n", i%70) }
	for i := range 2000 {
		content, place := value(i), s.Place()
		*place = thing{number: i, name: s.String(name(i)), value: s.Bytes(content)}
		clear(content)
		kept = append(kept, place)
	}
	for i, k := range kept {
		if k.number != i || k.name != name(i) || !bytes.Equal(k.value, value(i)) {
			t.Fatalf("thing %d is %d, with a name of %d bytes and a value of %d", i, k.number, len(k.name), len(k.value))
		}
		_ = append(k.value, 1) // must not reach the next value
	}
	large := bytes.Repeat([]byte("x"), 2*board)
	if got := s.Bytes(large); !bytes.Equal(got, large) {
		t.Error("a large value is not the same")
	}
}

// A thing that is larger than a board has one of its own.
func TestLargeThings(t *testing.T) {
	var s Shelf[[2 * board]byte]
	first, second := s.Place(), s.Place()
	first[0] = 1
	if second[0] != 0 {
		t.Error("two things have one place")
	}
}
