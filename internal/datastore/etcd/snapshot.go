package etcd

import (
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Member)(nil)

// unwritten is how many revisions the database may lack after a member was
// killed. etcd writes its database after this many changes, and a revision has at
// least one (server/v3/storage/backend/backend.go, defaultBatchLimit).
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/backend/backend.go defaultBatchLimit
const unwritten = 10_000

// Kind implements datastore.Snapshotter. Save writes a snapshot in the format of
// etcdctl and etcdutl.
func (m *Member) Kind() string { return "etcd" }

// openDatabase opens a database of etcd read-only.
func openDatabase(file string) (*bolt.DB, error) {
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("open etcd's database %s: %w", file, err)
	}
	return db, nil
}

// lastRevision returns the last revision in a database.
func lastRevision(file string) (last int64, err error) {
	db, err := openDatabase(file)
	if err != nil {
		return 0, err
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
		// The last change may have been a deletion that is compacted and left
		// nothing.
		if compacted := meta.Get(schema.ScheduledCompactKeyName); compacted != nil {
			last = max(last, mvcc.BytesToRev(compacted).Main)
		}
		return nil
	})
	return last, err
}

// changes calls each with all changes in a database, in the order of their revisions.
func changes(file string, each func(*mvccpb.Event)) (err error) {
	db, err := openDatabase(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(schema.Key.Name()).ForEach(func(revision, value []byte) error {
			event := &mvccpb.Event{Kv: &mvccpb.KeyValue{}}
			if err := proto.Unmarshal(value, event.Kv); err != nil {
				return fmt.Errorf("read etcd's database %s: %w", file, err)
			}
			if mvcc.IsTombstone(revision) {
				event.Type = mvccpb.Event_DELETE
			}
			each(event)
			return nil
		})
	})
}
