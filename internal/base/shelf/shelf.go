// Package shelf keeps small objects that stay side by side in memory, so that each does
// not hold a page of its own. Go never moves an object. If small objects that stay come
// together with much garbage, as they do in a burst, each of them keeps a whole page of
// the heap after the garbage is gone.
package shelf

import "unsafe"

// board is how many bytes lie together. It is the size of Go's smallest pages, so that a
// thing that stays when all others on its board are gone costs no more than it would alone.
const board = 8 << 10

// Shelf has room for things of one type, and for the texts in them. A board is free when
// nobody refers to anything on it. A Shelf is for one goroutine at a time.
type Shelf[T any] struct {
	places []T
	bytes  []byte
}

// Place returns a place for a thing.
func (s *Shelf[T]) Place() *T {
	if len(s.places) == 0 {
		var thing T
		s.places = make([]T, max(1, board/max(1, unsafe.Sizeof(thing))))
	}
	place := &s.places[0]
	s.places = s.places[1:]
	return place
}

// Bytes returns a copy of a value. Large values do not share a board.
func (s *Shelf[T]) Bytes(value []byte) []byte {
	if len(value) > board/4 {
		return append([]byte(nil), value...)
	}
	if len(value) > len(s.bytes) {
		s.bytes = make([]byte, board)
	}
	n := copy(s.bytes, value)
	copied := s.bytes[:n:n]
	s.bytes = s.bytes[n:]
	return copied
}

// String returns a copy of a text.
func (s *Shelf[T]) String(text string) string {
	if text == "" {
		return ""
	}
	copied := s.Bytes(unsafe.Slice(unsafe.StringData(text), len(text)))
	return unsafe.String(&copied[0], len(copied)) // nobody changes the bytes
}
