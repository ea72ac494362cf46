package etcd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Export calls each with every change that can be asked for of a datastore, in the
// order of revisions, and returns the current revision and the one below which
// nothing can be asked for. A key's version is not known, and its lease is how many
// seconds it lives.
type Export func(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error)

// Migrate makes the first member of a cluster that goes on where another datastore
// was, with its keys, revisions and leases. What it makes is complete and on the
// disk before it becomes the member by one rename; until then an error, or a crash,
// leaves nothing that counts. Where there is a member it only tidies up, so whoever
// does not know how far it came calls it again.
func Migrate(ctx context.Context, cfg Config, export Export) (err error) {
	made := filepath.Join(cfg.Dir, "migrating")
	defer func() { err = errors.Join(err, os.RemoveAll(made)) }()
	if Exists(cfg.Dir) {
		return nil
	}
	if err := errors.Join(os.RemoveAll(made), os.MkdirAll(filepath.Dir(database(made)), 0o700)); err != nil {
		return fmt.Errorf("make folder of etcd: %w", datadir.Explain(err))
	}
	m := New(cfg)
	name, err := ensureName(cfg.Dir, cfg.Node)
	if err != nil {
		return err
	}
	peers, err := types.NewURLsMap(name + "=" + m.peerURL())
	if err != nil {
		return fmt.Errorf("name etcd's member: %w", err)
	}
	logger := newLogger(m.log, m.fail)
	// The cluster's id is made of the member's name, of which no two are the same.
	cluster, err := membership.NewClusterFromURLsMap(logger, name, peers)
	if err != nil {
		return fmt.Errorf("begin etcd's cluster: %w", err)
	}
	self := cluster.MemberByName(name)
	state, err := begin(logger, made, cluster, self)
	if err != nil {
		return fmt.Errorf("begin etcd's log: %w", datadir.Explain(err))
	}
	if err := fill(ctx, database(made), self, state, export); err != nil {
		return err
	}
	if err := errors.Join(datadir.SyncAll(made), datadir.SyncFolder(filepath.Dir(cfg.Dir))); err != nil {
		return err
	}
	// Without a log there is nothing in what may be there.
	return datadir.Replace(filepath.Join(made, "member"), filepath.Join(cfg.Dir, "member"), filepath.Join(made, "old"))
}

// batchBytes is about how much goes into one transaction: it is in memory until
// then.
const batchBytes = 4 << 20

// filler fills a new database of etcd's. etcd's own backend is of no use for it: it
// ends the process when the disk is full.
type filler struct {
	db *bolt.DB
	// tx is nil between two transactions.
	tx      *bolt.Tx
	pending int
	// versions counts the changes of each key that is there.
	versions map[string]int64
	leases   map[int64]bool
	// last is the last revision with a change.
	last int64
}

// fill makes the database of a member that is alone, and whose log is as state says.
func fill(ctx context.Context, file string, self *membership.Member, state raftpb.HardState, export Export) (err error) {
	// It is synced when it is complete: before, it is of no use.
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return fmt.Errorf("make etcd's database: %w", err)
	}
	f := &filler{db: db, versions: map[string]int64{}, leases: map[int64]bool{}}
	defer func() {
		if f.tx != nil {
			_ = f.tx.Rollback()
		}
		err = errors.Join(err, db.Close())
	}()
	revision, compacted, err := export(ctx, func(event *mvccpb.Event) error { return written(f.add(event)) })
	if err != nil {
		return err
	}
	if revision > f.last {
		// The last ones left no key: they must not be used again, and who saw them
		// has to look again. etcd goes on above what is compacted.
		compacted = revision
	}
	return written(errors.Join(f.addMember(self, state, compacted), f.commit()))
}

// written is why the database cannot be written.
func written(err error) error {
	if err != nil {
		err = fmt.Errorf("write etcd's database: %w", datadir.Explain(err))
	}
	return err
}

// add adds a change.
func (f *filler) add(event *mvccpb.Event) error {
	kv, name := *event.Kv, string(event.Kv.Key)
	revision := revisionKey(kv.ModRevision)
	switch {
	case event.Type == mvccpb.DELETE:
		revision = tombstone(kv.ModRevision)
		kv = mvccpb.KeyValue{Key: kv.Key}
		delete(f.versions, name)
	case kv.CreateRevision == kv.ModRevision:
		kv.Version = 1
	default:
		// Those before may be compacted, but there was one.
		kv.Version = max(f.versions[name], 1) + 1
	}
	if kv.Version > 0 {
		f.versions[name] = kv.Version
	}
	if err := f.addLease(kv.Lease); err != nil {
		return err
	}
	value, err := kv.Marshal()
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	f.last = event.Kv.ModRevision
	return f.put(schema.Key, revision, value)
}

// addLease adds the lease of all keys that live so many seconds, which begin anew.
// That is its id too, as it is with kine.
func (f *filler) addLease(seconds int64) error {
	if seconds == 0 || f.leases[seconds] {
		return nil
	}
	f.leases[seconds] = true
	value, err := (&leasepb.Lease{ID: seconds, TTL: seconds}).Marshal()
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	return f.put(schema.Lease, number(seconds), value)
}

// addMember adds what etcd itself knows (server/v3/storage/schema).
func (f *filler) addMember(self *membership.Member, state raftpb.HardState, compacted int64) error {
	member, err := json.Marshal(self)
	if err != nil {
		return fmt.Errorf("encode etcd's member: %w", err)
	}
	voters, err := json.Marshal(raftpb.ConfState{Voters: []uint64{uint64(self.ID)}})
	if err != nil {
		return fmt.Errorf("encode etcd's member: %w", err)
	}
	err = errors.Join(
		f.put(schema.Members, schema.BackendMemberKey(self.ID), member),
		f.put(schema.Meta, schema.MetaConfStateName, voters),
		f.put(schema.Meta, schema.MetaConsistentIndexKeyName, number(int64(state.Commit))),
		f.put(schema.Meta, schema.MetaTermKeyName, number(int64(state.Term))),
	)
	if compacted > 0 {
		err = errors.Join(err, f.put(schema.Meta, schema.FinishedCompactKeyName, revisionKey(compacted)))
	}
	return err
}

func (f *filler) put(bucket backend.Bucket, key, value []byte) (err error) {
	if f.tx == nil {
		if f.tx, err = f.db.Begin(true); err != nil {
			return err
		}
	}
	keys, err := f.tx.CreateBucketIfNotExists(bucket.Name())
	if err != nil {
		return err
	}
	if bucket.ID() == schema.Key.ID() {
		keys.FillPercent = 0.9 // as etcd does, since it adds at the end only
	}
	if err := keys.Put(key, value); err != nil {
		return err
	}
	if f.pending += len(key) + len(value); f.pending < batchBytes {
		return nil
	}
	return f.commit()
}

func (f *filler) commit() error {
	if f.tx == nil {
		return nil
	}
	err := f.tx.Commit()
	f.tx, f.pending = nil, 0
	return err
}

// revisionKey is the key of a change in etcd's database.
func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// tombstone is the key of a deletion: markTombstone (server/v3/storage/mvcc/revision.go).
func tombstone(revision int64) []byte { return append(revisionKey(revision), 't') }

// number is a number in etcd's database.
func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
