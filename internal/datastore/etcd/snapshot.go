package etcd

import (
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Member)(nil)

// unwritten is how many revisions the database may be behind what was answered
// when a member was killed: each is one change at least, and etcd writes after so
// many (server/v3/storage/backend/backend.go, defaultBatchLimit).
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/backend/backend.go defaultBatchLimit
const unwritten = 10_000

// Kind implements datastore.Snapshotter: what Save writes is a snapshot of etcd's,
// as etcdctl and etcdutl know it.
func (m *Member) Kind() string { return "etcd" }

// lastRevision returns the last revision in a database, which is only read.
func lastRevision(file string) (last int64, err error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, fmt.Errorf("open etcd's database %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
		if keys == nil || meta == nil {
			return fmt.Errorf("%s is a database, but not etcd's", file)
		}
		if key, _ := keys.Cursor().Last(); key != nil {
			last = mvcc.BytesToBucketKey(key).Main
		}
		// The last change may have been a deletion, of which nothing is left.
		if compacted := meta.Get(schema.ScheduledCompactKeyName); compacted != nil {
			last = max(last, mvcc.BytesToRev(compacted).Main)
		}
		return nil
	})
	return last, err
}
