package sqlite

import (
	"bytes"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
)

// Versions on the shelf are copies that do not touch one another.
func TestShelf(t *testing.T) {
	var s shelf
	var put []version
	var previous *server.KeyValue
	want := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*i%3000) }
	for i := range 3 * shelfVersions {
		value := want(i)
		v := s.put(version{
			Event:   &server.Event{Create: previous == nil, KV: &server.KeyValue{Key: "/key", Value: value, ModRevision: int64(i)}, PrevKV: previous},
			follows: int64(i), durability: volatile,
		})
		clear(value)
		previous = v.KV
		put = append(put, v)
	}
	for i, v := range put {
		if !bytes.Equal(v.KV.Value, want(i)) || v.KV.ModRevision != int64(i) || v.KV.Key != "/key" || v.follows != int64(i) || v.Create != (i == 0) {
			t.Fatalf("version %d is %+v", i, v.KV)
		}
		if i > 0 && v.PrevKV != put[i-1].KV {
			t.Fatalf("version %d does not follow the one before", i)
		}
		_ = append(v.KV.Value, 1) // must not reach the next version
	}
	// A value larger than the shelf is kept too.
	large := bytes.Repeat([]byte("x"), shelfBytes+1)
	if v := s.put(version{Event: &server.Event{KV: &server.KeyValue{Value: large}}}); !bytes.Equal(v.KV.Value, large) {
		t.Error("a large value is not the same")
	}
}
