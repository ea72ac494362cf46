package sqlite

import (
	"cmp"
	"slices"
	"strings"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/shelf"
)

// durability says when a change must be on the disk.
type durability int

const (
	// durable changes are acknowledged when they have reached the disk.
	durable durability = iota
	// deferred changes are acknowledged at once, and written a little later.
	deferred
	// volatile changes are acknowledged at once. A volatile change is written
	// only if it is still the last change of its key at an orderly stop.
	volatile
)

// version is one change of one key.
type version struct {
	*server.Event
	// follows is the id of the last row of the same key before this version, or 0
	// if there is none.
	follows int64
	// durability is set to durable once the version is in the database.
	durability durability
}

// row returns the id of the row that a later version follows.
func (v version) row() int64 {
	if v.durability == volatile {
		return v.follows
	}
	return v.KV.ModRevision
}

// place is where a volatile version lies. In a large cluster a renewal of a Lease comes
// every few milliseconds, while other objects come and go.
type place struct {
	event server.Event
	kv    server.KeyValue
}

// onShelf returns v with a copy of its event on a shelf.
func onShelf(s *shelf.Shelf[place], v version) version {
	p := s.Place()
	p.event, p.kv = *v.Event, *v.KV
	p.event.KV, p.kv.Value = &p.kv, s.Bytes(v.KV.Value)
	if v.PrevKV != nil {
		p.kv.Key = v.PrevKV.Key // an equal string
	}
	v.Event = &p.event
	return v
}

// memory has the versions that are not in the database: the deferred ones until
// they are written, and the volatile ones. From the first such version of a key
// on, memory has all later versions of that key too, until the unwritten ones are
// too old to be read. So the version of a key at a revision is either here or in
// the database.
type memory map[string][]version

// add adds v if v is not durable, or if its key is already here.
func (m memory) add(v version) {
	if known := m[v.KV.Key]; v.durability != durable || known != nil {
		m[v.KV.Key] = append(known, v)
	}
}

// at returns the last version of key at revision. ok is false if memory does not
// have it.
func (m memory) at(key string, revision int64) (last version, ok bool) {
	for _, v := range slices.Backward(m[key]) {
		if v.KV.ModRevision <= revision {
			return v, true
		}
	}
	return version{}, false
}

// between returns the result of at for each key from key to end, in the order of
// keys.
func (m memory) between(key, end string, revision int64) (found []version) {
	for name := range m {
		if name >= key && name < end {
			if v, ok := m.at(name, revision); ok {
				found = append(found, v)
			}
		}
	}
	slices.SortFunc(found, func(a, b version) int { return strings.Compare(a.KV.Key, b.KV.Key) })
	return found
}

// events returns the changes in memory after one revision and up to another, in
// no order.
func (m memory) events(key, end string, after, upTo int64) (found []*server.Event) {
	for _, versions := range m {
		for _, v := range versions {
			if v.KV.ModRevision > after && v.KV.ModRevision <= upTo && v.InRange(key, end) {
				found = append(found, v.Event)
			}
		}
	}
	return found
}

func byRevision(a, b *server.Event) int { return cmp.Compare(a.KV.ModRevision, b.KV.ModRevision) }

// volatile returns the last version of each key for which that is volatile.
func (m memory) volatile() (found []version) {
	for _, versions := range m {
		if v := versions[len(versions)-1]; v.durability == volatile {
			found = append(found, v)
		}
	}
	return found
}

// written records that v is in the database now.
func (m memory) written(v version) {
	versions := m[v.KV.Key]
	for i := range versions {
		if versions[i].KV.ModRevision == v.KV.ModRevision {
			versions[i].durability = durable
		}
	}
	m.tidy(v.KV.Key)
}

// compact drops the versions that cannot be read once everything below revision
// is compacted.
func (m memory) compact(revision int64) {
	for key, versions := range m {
		for len(versions) > 1 && versions[1].KV.ModRevision <= revision {
			versions = versions[1:]
		}
		m[key] = slices.Clip(versions)
		m.tidy(key)
	}
}

// tidy drops key if all of its versions are in the database.
func (m memory) tidy(key string) {
	if !slices.ContainsFunc(m[key], func(v version) bool { return v.durability != durable }) {
		delete(m, key)
	}
}
