package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Member)(nil)

// unwritten is how many revisions the database may be behind what was answered
// when a member was killed: each is one change at least, and etcd writes after so
// many (server/v3/storage/backend/backend.go, defaultBatchLimit).
const unwritten = 10_000

// Kind implements datastore.Snapshotter: what Save writes is a snapshot of etcd's,
// as etcdctl and etcdutl know it.
func (m *Member) Kind() string { return "etcd" }

// Save implements datastore.Snapshotter. It does what etcd's maintenance service
// does for etcdctl (server/v3/etcdserver/api/v3rpc/maintenance.go), which does not
// say where a snapshot ends if there is no connection.
func (m *Member) Save(ctx context.Context, file string) (revision int64, err error) {
	server := m.server.Load()
	client := m.newClient(server).Client
	defer client.Close()
	// What others acknowledged, this member has once it has answered a read.
	if _, err := client.Get(ctx, "/", clientv3.WithCountOnly()); err != nil {
		return 0, fmt.Errorf("catch up with etcd's other members: %w", err)
	}
	snapshot := server.Backend().Snapshot()
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	target, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		sum := sha256.New()
		if _, err = snapshot.WriteTo(io.MultiWriter(target, sum)); err == nil {
			_, err = target.Write(sum.Sum(nil))
		}
		err = errors.Join(err, target.Close())
	}
	if err != nil {
		return 0, fmt.Errorf("copy etcd's database: %w", datadir.Explain(err))
	}
	return lastRevision(file)
}

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
