package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/coreos/go-semver/semver"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/txn"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Stopped is a member of another program's etcd, which does not run. Its files are only
// read.
type Stopped struct {
	// Dir is the folder of the member.
	Dir string
	// Scratch is the path of a folder for a copy of the member's database. Export
	// makes it and removes it.
	Scratch string
}

// readPage is how many keys are read at a time.
const readPage = 500

// Export is an Export of the present keys. It fails if the member runs. A member's
// database may lack the last changes, which only its log has: a member that was killed
// has not written them to the database yet. Export applies them to the copy.
//
// The last changes of a member with others count only if the member knows that a
// majority had them. What a member without others has logged is valid.
func (s Stopped) Export(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
	if err := os.RemoveAll(s.Scratch); err != nil {
		return 0, 0, fmt.Errorf("copy etcd's database: %w", datadir.Explain(err))
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.Scratch)) }()
	if err := s.copy(); err != nil {
		return 0, 0, fmt.Errorf("copy etcd's database: %w", datadir.Explain(err))
	}
	// etcd would panic if the file is not a database.
	if _, err := lastRevision(s.file()); err != nil {
		return 0, 0, err
	}
	failed, done := make(chan error, 1), make(chan error, 1)
	logger := newLogger(logrus.WithField("component", name), func(err error) { failed <- err })
	go func() {
		var err error
		revision, err = s.read(ctx, logger, each)
		done <- err
	}()
	select {
	case err = <-done:
	case err = <-failed: // etcd has ended the goroutine
	}
	return revision, revision, err
}

func (s Stopped) file() string { return filepath.Join(s.Scratch, "db") }

// copy copies the database, unless a member has it open.
func (s Stopped) copy() (err error) {
	if err := os.MkdirAll(s.Scratch, 0o700); err != nil {
		return err
	}
	from, err := os.Open(database(s.Dir))
	if err != nil {
		return err
	}
	defer from.Close()
	// A member that runs has an exclusive lock (bbolt).
	if err := syscall.Flock(int(from.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s is in use: stop the program that uses it first: %w", from.Name(), err)
	}
	to, err := os.OpenFile(s.file(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	_, err = io.Copy(to, from)
	return err
}

// read applies the end of the log to the copy, and reads the copy.
func (s Stopped) read(ctx context.Context, logger *zap.Logger, each func(*mvccpb.Event) error) (revision int64, err error) {
	db := backend.NewDefaultBackend(logger, s.file())
	defer func() { err = errors.Join(err, db.Close()) }()
	leases := lease.NewLessor(logger, db, clusterOfOne{}, lease.LessorConfig{})
	defer leases.Stop()
	store := mvcc.New(logger, db, leases, mvcc.StoreConfig{})
	defer func() { err = errors.Join(err, store.Close()) }()

	entries, err := s.missing(logger, db)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if err := applyEntry(ctx, logger, store, leases, entry); err != nil {
			return 0, fmt.Errorf("apply entry %d of etcd's log: %w", entry.GetIndex(), err)
		}
	}
	return export(ctx, store, leases, each)
}

// missing returns the entries of the log that the database does not have.
func (s Stopped) missing(logger *zap.Logger, db backend.Backend) ([]*raftpb.Entry, error) {
	folder := filepath.Join(s.Dir, "member", "wal")
	snapshots, err := wal.ValidSnapshotEntries(logger, folder)
	if err != nil {
		return nil, fmt.Errorf("read etcd's log: %w", err)
	}
	last := &walpb.Snapshot{}
	if len(snapshots) > 0 {
		last = snapshots[len(snapshots)-1]
	}
	log, err := wal.OpenForRead(logger, folder, last)
	if err != nil {
		return nil, fmt.Errorf("read etcd's log: %w", err)
	}
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read etcd's log: %w", err)
	}
	applied, _ := schema.ReadConsistentIndex(db.ReadTx())
	if applied < last.GetIndex() {
		return nil, fmt.Errorf("etcd's database in %s is older than its log: it has entry %d, and the log begins after entry %d. Restore the member from a snapshot first", s.Dir, applied, last.GetIndex())
	}
	members, _ := schema.NewMembershipBackend(logger, db).MustReadMembersFromBackend()
	return slices.DeleteFunc(entries, func(e *raftpb.Entry) bool {
		return e.GetIndex() <= applied || e.GetIndex() > state.GetCommit() && len(members) > 1
	}), nil
}

// applyEntry does what a member does with an entry of its log, as far as it changes keys and
// leases. A request that a member would refuse changes nothing here too.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/apply/backend.go applierV3backend.Put applierV3backend.DeleteRange applierV3backend.Txn applierV3backend.LeaseGrant applierV3backend.LeaseRevoke
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/server.go EtcdServer.applyEntryNormal
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/apply/apply.go Apply
func applyEntry(ctx context.Context, logger *zap.Logger, store mvcc.KV, leases lease.Lessor, entry *raftpb.Entry) error {
	if entry.GetType() != raftpb.EntryNormal || len(entry.Data) == 0 {
		return nil
	}
	var request etcdserverpb.InternalRaftRequest
	if err := proto.Unmarshal(entry.Data, &request); err != nil {
		// A request of etcd's version 2, which changes only what etcd knows of its
		// members.
		return nil
	}
	var refused error
	switch {
	case request.Put != nil:
		_, _, refused = txn.Put(ctx, logger, leases, store, request.Put)
	case request.DeleteRange != nil:
		_, _, refused = txn.DeleteRange(ctx, logger, store, request.DeleteRange)
	case request.Txn != nil:
		_, _, refused = txn.Txn(ctx, logger, request.Txn, false, store, leases, true)
	case request.LeaseGrant != nil:
		_, refused = leases.Grant(lease.LeaseID(request.LeaseGrant.ID), request.LeaseGrant.TTL)
	case request.LeaseRevoke != nil:
		refused = leases.Revoke(lease.LeaseID(request.LeaseRevoke.ID))
	}
	if refused != nil {
		logger.Debug("etcd refused this request too", zap.Error(refused))
	}
	return ctx.Err()
}

// export calls each with the present keys, in the order of their revisions.
func export(ctx context.Context, store mvcc.KV, leases lease.Lessor, each func(*mvccpb.Event) error) (revision int64, err error) {
	type found struct {
		key      []byte
		revision int64
	}
	var keys []found
	for from, end := []byte{0}, []byte{}; ; {
		page, err := store.Range(ctx, from, end, mvcc.RangeOptions{Limit: readPage})
		if err != nil {
			return 0, fmt.Errorf("read etcd's keys: %w", err)
		}
		revision = page.Rev
		for _, kv := range page.KVs {
			keys = append(keys, found{kv.Key, kv.ModRevision})
		}
		if len(page.KVs) < readPage {
			break
		}
		from = append(slices.Clone(page.KVs[readPage-1].Key), 0)
	}
	slices.SortFunc(keys, func(a, b found) int { return cmp.Compare(a.revision, b.revision) })
	for _, key := range keys {
		result, err := store.Range(ctx, key.key, nil, mvcc.RangeOptions{})
		if err != nil || len(result.KVs) != 1 {
			return 0, errors.Join(fmt.Errorf("read etcd's key %s", key.key), err)
		}
		kv := result.KVs[0]
		if held := leases.Lookup(lease.LeaseID(kv.Lease)); held != nil {
			kv.Lease = held.TTL()
		} else {
			kv.Lease = 0
		}
		if err := each(&mvccpb.Event{Kv: kv}); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// clusterOfOne tells the leases that no other member counts.
type clusterOfOne struct{}

// Version returns nil, which stands for an unknown version of the cluster.
func (clusterOfOne) Version() *semver.Version { return nil }
