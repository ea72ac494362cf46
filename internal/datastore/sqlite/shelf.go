package sqlite

import "github.com/k3s-io/kine/pkg/server"

const (
	// shelfVersions is how many versions lie side by side, and shelfBytes how many
	// bytes of values.
	shelfVersions = 256
	shelfBytes    = 64 << 10
)

// shelf is where the volatile versions lie that memory keeps for some minutes. In
// a large cluster a renewal of a Lease comes every few milliseconds, while other
// objects come and go. If renewals lay among these, each of them would keep a page
// of the heap from being given back when the other objects are gone.
type shelf struct {
	places []place
	bytes  []byte
}

type place struct {
	event server.Event
	kv    server.KeyValue
}

// put returns v with a copy of its event, which lies beside the one before.
func (s *shelf) put(v version) version {
	if len(s.places) == 0 {
		s.places = make([]place, shelfVersions)
	}
	p := &s.places[0]
	s.places = s.places[1:]
	p.event, p.kv = *v.Event, *v.KV
	p.event.KV = &p.kv
	p.kv.Value = s.copy(v.KV.Value)
	if v.PrevKV != nil {
		p.kv.Key = v.PrevKV.Key // an equal string
	}
	v.Event = &p.event
	return v
}

func (s *shelf) copy(value []byte) []byte {
	if len(value) > len(s.bytes) {
		s.bytes = make([]byte, max(shelfBytes, len(value)))
	}
	n := copy(s.bytes, value)
	copied := s.bytes[:n:n]
	s.bytes = s.bytes[n:]
	return copied
}
