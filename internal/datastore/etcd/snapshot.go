package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/kedge-dev/kedge/internal/datadir"
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
	client := newClient(server).Client
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

// LastRevision implements datastore.Snapshotter.
func (m *Member) LastRevision(context.Context) (int64, error) {
	if !Exists(m.cfg.Dir) {
		return 0, nil
	}
	last, err := lastRevision(database(m.cfg.Dir))
	return last + unwritten, err
}

// database is that of the member in a folder.
func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// Prepared is where Prepare puts the member that is to be restored.
func Prepared(folder string) string { return filepath.Join(folder, "etcd") }

// Prepare implements datastore.Snapshotter. Its member is the only one of a new
// cluster, which no member of the old one can mistake for its own.
func (m *Member) Prepare(_ context.Context, file, folder string, above int64) error {
	made := Prepared(folder)
	if err := os.MkdirAll(filepath.Dir(database(made)), 0o700); err != nil {
		return fmt.Errorf("make folder of etcd: %w", datadir.Explain(err))
	}
	if err := os.Rename(file, database(made)); err != nil {
		return fmt.Errorf("take saved database: %w", datadir.Explain(err))
	}
	if err := removeSum(database(made)); err != nil {
		return fmt.Errorf("take saved database: %w", datadir.Explain(err))
	}
	// What is no database would make etcd panic.
	if _, err := lastRevision(database(made)); err != nil {
		return err
	}
	name, err := ensureName(made, m.cfg.Node)
	if err != nil {
		return err
	}
	prepared := make(chan error, 1)
	go func() { prepared <- m.found(made, name, above) }()
	select {
	case err := <-prepared:
		return err
	case err := <-m.failed: // and etcd has ended the goroutine
		return err
	}
}

// removeSum removes the checksum at the end of a snapshot of etcd's, which makes
// its size none of whole sectors (etcdutl/snapshot/v3_snapshot.go, hasChecksum).
// Package snapshot has one of its own.
func removeSum(file string) error {
	info, err := os.Stat(file)
	if err != nil || info.Size()%512 != sha256.Size {
		return err
	}
	return os.Truncate(file, info.Size()-sha256.Size)
}

// Commit implements datastore.Snapshotter.
func (m *Member) Commit(_ context.Context, folder, kept string) error {
	return datadir.Replace(Prepared(folder), m.cfg.Dir, Prepared(kept))
}

// Kept implements datastore.Snapshotter.
func (m *Member) Kept(kept string) string { return kept }
