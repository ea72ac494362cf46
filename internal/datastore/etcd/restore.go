package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
)

// LastRevision implements datastore.Snapshotter.
func (m *Member) LastRevision(context.Context) (int64, error) {
	if !Exists(m.cfg.Dir) {
		return 0, nil
	}
	last, err := lastRevision(database(m.cfg.Dir))
	return last + unwritten, err
}

// Convert implements datastore.Snapshotter.
func (m *Member) Convert(ctx context.Context, export datastore.Export, file string) error {
	return fill(ctx, file, export, (*filler).addCompacted)
}

// Prepared returns where Prepare puts the restored member.
func Prepared(folder string) string { return filepath.Join(folder, "etcd") }

// Prepare implements datastore.Snapshotter. The prepared member is the only one
// of a new cluster, so that no member of the old cluster takes it for one of its
// own.
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
	// etcd would panic if the file is not a database.
	if _, err := lastRevision(database(made)); err != nil {
		return err
	}
	if err := m.checkSizes(database(made)); err != nil {
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
	case err := <-m.failed: // etcd has ended the goroutine
		return err
	}
}

// checkSizes returns an error that names the objects of a database that are too large for
// this member.
func (m *Member) checkSizes(file string) error {
	most, err := limit(m.cfg.Args)
	if err != nil {
		return err
	}
	large := sizes.NewObjects(most)
	if err := changes(file, large.Note); err != nil {
		return err
	}
	return large.Err(allowMore)
}

// removeSum removes the checksum at the end of etcd's snapshots. A file that ends
// with one is not a multiple of a sector long (etcdutl/snapshot/v3_snapshot.go,
// hasChecksum). Package snapshot has its own checksum.
//
//upstream:relies-on go.etcd.io/etcd/etcdutl/v3/snapshot/v3_snapshot.go hasChecksum
func removeSum(file string) error {
	info, err := os.Stat(file)
	if err != nil || info.Size()%512 != sha256.Size {
		return err
	}
	return os.Truncate(file, info.Size()-sha256.Size)
}

// found makes the database in a folder the state of a new cluster with one
// member. Its revisions continue above the given one, and all up to that count as
// compacted.
//
// It does what `etcdutl snapshot restore --bump-revision --mark-compacted` does
// (etcdutl/snapshot/v3_snapshot.go). kedge does not include that module.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/mvcc/store.go UnsafeSetScheduledCompact
//upstream:relies-on go.etcd.io/etcd/etcdutl/v3/snapshot/v3_snapshot.go v3Manager.Restore v3Manager.saveDB v3Manager.modifyLatestRevision v3Manager.unsafeBumpBucketsRevision v3Manager.unsafeMarkRevisionCompacted v3Manager.updateCIndex
func (m *Member) found(dir, name string, above int64) (err error) {
	logger := newLogger(m.log, m.fail)
	cluster, err := m.clusterOfOne(logger, name)
	if err != nil {
		return fmt.Errorf("found etcd's cluster: %w", err)
	}
	db := backend.NewDefaultBackend(logger, database(dir))
	defer func() { err = errors.Join(err, db.Close()) }()

	members := schema.NewMembershipBackend(logger, db)
	if err := members.TrimMembershipFromBackend(); err != nil {
		return fmt.Errorf("remove etcd's old members: %w", err)
	}
	cluster.SetBackend(members)
	self := cluster.MemberByName(name)
	cluster.AddMember(self, true)
	state, err := begin(logger, dir, cluster, self)
	if err != nil {
		return fmt.Errorf("found etcd's cluster: %w", err)
	}

	// The join token in the snapshot may have been replaced since. The server's own
	// token is the valid one.
	token, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(join.TokenKey)})
	if err != nil {
		return fmt.Errorf("encode deletion of the token: %w", err)
	}
	tx := db.BatchTx()
	tx.LockOutsideApply()
	schema.MustUnsafeSaveConfStateToBackend(logger, tx, &raftpb.ConfState{Voters: []uint64{uint64(self.ID)}})
	tx.UnsafePut(schema.Key, tombstone(above), token)
	mvcc.UnsafeSetScheduledCompact(tx, above)
	tx.Unlock()
	cindex.UpdateConsistentIndexForce(tx, state.GetCommit(), state.GetTerm())
	return nil
}

// Commit implements datastore.Snapshotter.
func (m *Member) Commit(_ context.Context, folder, kept string) error {
	if err := os.MkdirAll(filepath.Dir(m.cfg.Dir), 0o700); err != nil {
		return fmt.Errorf("make folder of etcd: %w", datadir.Explain(err))
	}
	return datadir.Replace(Prepared(folder), m.cfg.Dir, Prepared(kept))
}

// Kept implements datastore.Snapshotter.
func (m *Member) Kept(kept string) string { return kept }
