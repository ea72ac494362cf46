package sqlite

import (
	"cmp"
	"slices"
	"strings"

	"github.com/k3s-io/kine/pkg/server"
)

// durability is what a change is worth.
type durability int

const (
	// durable: acknowledged when it has reached the disk.
	durable durability = iota
	// deferred: acknowledged at once, and in the database a little later.
	deferred
	// volatile: acknowledged at once, and in the database only if it is still
	// the last change of its key at an orderly stop.
	volatile
)

// version is one change of one key.
type version struct {
	*server.Event
	// follows is the row that this one follows: the id of the last row of the
	// same key, 0 if there is none.
	follows int64
	// durability is durable once the version is in the database.
	durability durability
}

// row is the id of the row that a later version follows.
func (v version) row() int64 {
	if v.durability == volatile {
		return v.follows
	}
	return v.KV.ModRevision
}

// memory has the versions that are not in the database: the deferred ones that
// are yet to be written, and the volatile ones. From the first of these on it
// has all later versions of that key too, until none of those that are not in
// the database can be asked for any more. So whoever looks for a key at a
// revision finds it here, or else in the database.
type memory map[string][]version

// add takes v in, if it has to.
func (m memory) add(v version) {
	if known := m[v.KV.Key]; v.durability != durable || known != nil {
		m[v.KV.Key] = append(known, v)
	}
}

// at returns the version that was key's last one at revision.
func (m memory) at(key string, revision int64) (last version, ok bool) {
	for _, v := range slices.Backward(m[key]) {
		if v.KV.ModRevision <= revision {
			return v, true
		}
	}
	return version{}, false
}

// between returns what at does for each key from key to end, in order of keys.
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

// events returns the changes after one revision, up to another, of the keys
// that are here.
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

// volatile returns the last versions of keys that are volatile.
func (m memory) volatile() (found []version) {
	for _, versions := range m {
		if v := versions[len(versions)-1]; v.durability == volatile {
			found = append(found, v)
		}
	}
	return found
}

// written records that v is now in the database.
func (m memory) written(v version) {
	versions := m[v.KV.Key]
	for i := range versions {
		if versions[i].KV.ModRevision == v.KV.ModRevision {
			versions[i].durability = durable
		}
	}
	m.tidy(v.KV.Key)
}

// compact forgets what cannot be asked for when nothing below revision can.
func (m memory) compact(revision int64) {
	for key, versions := range m {
		for len(versions) > 1 && versions[1].KV.ModRevision <= revision {
			versions = versions[1:]
		}
		m[key] = slices.Clip(versions)
		m.tidy(key)
	}
}

// tidy forgets key if all of it is in the database.
func (m memory) tidy(key string) {
	if !slices.ContainsFunc(m[key], func(v version) bool { return v.durability != durable }) {
		delete(m, key)
	}
}
