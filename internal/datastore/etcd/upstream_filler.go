// Follows go.etcd.io/etcd/server/v3 v3.7.3, lease/lease.go.
// Follows go.etcd.io/etcd/server/v3 v3.7.3, storage/backend/batch_tx.go.
// Follows go.etcd.io/etcd/server/v3 v3.7.3, storage/mvcc/kvstore_txn.go.
// Follows go.etcd.io/etcd/server/v3 v3.7.3, storage/mvcc/revision.go.
// Follows go.etcd.io/etcd/server/v3 v3.7.3, storage/schema/cindex.go.
// Follows go.etcd.io/etcd/server/v3 v3.7.3, storage/schema/confstate.go.

package etcd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// batchBytes is about how many bytes go into one transaction, which is in memory
// until its commit.
const batchBytes = 4 << 20

// filler fills a new etcd database. etcd's own backend cannot be used, because it
// ends the process when the disk is full.
//
//upstream:follows go.etcd.io/etcd/server/v3/storage/mvcc/kvstore_txn.go storeTxnWrite.put storeTxnWrite.delete
type filler struct {
	db *bolt.DB
	// tx is nil between two transactions.
	tx      *bolt.Tx
	pending int
	// versions counts the changes of each key that exists.
	versions map[string]int64
	leases   map[int64]bool
	// last is the last revision with a change.
	last int64
}

// add adds a change to the database.
func (f *filler) add(event *mvccpb.Event) error {
	name, modified := string(event.Kv.Key), event.Kv.ModRevision
	kv := &mvccpb.KeyValue{
		Key: event.Kv.Key, Value: event.Kv.Value, Lease: event.Kv.Lease,
		CreateRevision: event.Kv.CreateRevision, ModRevision: modified,
	}
	revision := revisionKey(modified)
	switch {
	case event.Type == mvccpb.Event_DELETE:
		revision = tombstone(modified)
		kv = &mvccpb.KeyValue{Key: kv.Key}
		delete(f.versions, name)
	case kv.CreateRevision == modified:
		kv.Version = 1
	default:
		// The earlier versions may be compacted, but there was at least one.
		kv.Version = max(f.versions[name], 1) + 1
	}
	if kv.Version > 0 {
		f.versions[name] = kv.Version
	}
	if err := f.addLease(kv.Lease); err != nil {
		return err
	}
	value, err := proto.Marshal(kv)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	f.last = modified
	return f.put(schema.Key, revision, value)
}

// addLease adds the lease of all keys with that lifetime in seconds, which begins
// anew. The lifetime is also the lease's id, as with kine.
//
//upstream:follows go.etcd.io/etcd/server/v3/lease/lease.go Lease.persistTo
func (f *filler) addLease(seconds int64) error {
	if seconds == 0 || f.leases[seconds] {
		return nil
	}
	f.leases[seconds] = true
	value, err := proto.Marshal(&leasepb.Lease{ID: seconds, TTL: seconds})
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	return f.put(schema.Lease, number(seconds), value)
}

// addMember adds etcd's own state (server/v3/storage/schema).
//
//upstream:follows go.etcd.io/etcd/server/v3/storage/schema/confstate.go MustUnsafeSaveConfStateToBackend
//upstream:follows go.etcd.io/etcd/server/v3/storage/schema/cindex.go unsafeUpdateConsistentIndex
func (f *filler) addMember(self *membership.Member, state *raftpb.HardState, compacted int64) error {
	member, err := json.Marshal(self)
	if err != nil {
		return fmt.Errorf("encode etcd's member: %w", err)
	}
	voters, err := json.Marshal(&raftpb.ConfState{Voters: []uint64{uint64(self.ID)}})
	if err != nil {
		return fmt.Errorf("encode etcd's member: %w", err)
	}
	err = errors.Join(
		f.put(schema.Members, schema.BackendMemberKey(self.ID), member),
		f.put(schema.Meta, schema.MetaConfStateName, voters),
		f.put(schema.Meta, schema.MetaConsistentIndexKeyName, number(int64(state.GetCommit()))),
		f.put(schema.Meta, schema.MetaTermKeyName, number(int64(state.GetTerm()))),
	)
	return errors.Join(err, f.addCompacted(compacted))
}

// addCompacted says that all revisions up to one are compacted.
func (f *filler) addCompacted(revision int64) error {
	if revision == 0 {
		return nil
	}
	return f.put(schema.Meta, schema.FinishedCompactKeyName, revisionKey(revision))
}

//upstream:follows go.etcd.io/etcd/server/v3/storage/backend/batch_tx.go batchTx.unsafePut
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
		keys.FillPercent = 0.9 // as in etcd, because keys are only added at the end
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

// revisionKey returns the key of a change in etcd's database.
func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// tombstone returns the key of a deletion: markTombstone
// (server/v3/storage/mvcc/revision.go).
//
//upstream:follows go.etcd.io/etcd/server/v3/storage/mvcc/revision.go BucketKeyToBytes markTombstone
func tombstone(revision int64) []byte { return append(revisionKey(revision), 't') }

// number encodes a number as in etcd's database.
func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
