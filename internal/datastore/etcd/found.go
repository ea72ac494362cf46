package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// found makes the database in a folder the state of a new cluster, of one member,
// whose revisions go on above the given one; all up to that count as compacted.
//
// It is what `etcdutl snapshot restore --bump-revision --mark-compacted` does
// (etcdutl/snapshot/v3_snapshot.go), whose module kedge does without.
func (m *Member) found(dir, name string, above int64) (err error) {
	logger := newLogger(m.log, m.fail)
	peers, err := types.NewURLsMap(name + "=" + m.peerURL())
	if err != nil {
		return fmt.Errorf("name etcd's member: %w", err)
	}
	// The cluster's id is made of the member's name, of which no two are the same.
	cluster, err := membership.NewClusterFromURLsMap(logger, name, peers)
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

	tx := db.BatchTx()
	tx.LockOutsideApply()
	schema.MustUnsafeSaveConfStateToBackend(logger, tx, &raftpb.ConfState{Voters: []uint64{uint64(self.ID)}})
	last := mvcc.BucketKey{Revision: mvcc.Revision{Main: above}}
	tx.UnsafePut(schema.Key, mvcc.BucketKeyToBytes(last, mvcc.NewRevBytes()), []byte{})
	mvcc.UnsafeSetScheduledCompact(tx, above)
	tx.Unlock()
	cindex.UpdateConsistentIndexForce(tx, state.Commit, state.Term)
	return nil
}

// begin writes the log of a cluster that has done no more than to take its only
// member in, and a snapshot of that state.
func begin(logger *zap.Logger, dir string, cluster *membership.RaftCluster, self *membership.Member) (raftpb.HardState, error) {
	id := uint64(self.ID)
	state := raftpb.HardState{Term: 1, Vote: id, Commit: 1}
	voters := raftpb.ConfState{Voters: []uint64{id}}
	text, err := json.Marshal(self)
	if err != nil {
		return state, err
	}
	added, err := (&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode, NodeID: id, Context: text}).Marshal()
	if err != nil {
		return state, err
	}
	metadata, err := (&etcdserverpb.Metadata{NodeID: id, ClusterID: uint64(cluster.ID())}).Marshal()
	if err != nil {
		return state, err
	}
	log, err := wal.Create(logger, filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		return state, err
	}
	entry := raftpb.Entry{Type: raftpb.EntryConfChange, Term: state.Term, Index: state.Commit, Data: added}
	err = log.Save(state, []raftpb.Entry{entry})
	if err == nil {
		err = snap.New(logger, filepath.Dir(database(dir))).SaveSnap(raftpb.Snapshot{
			Data:     etcdserver.GetMembershipInfoInV2Format(logger, cluster),
			Metadata: raftpb.SnapshotMetadata{Index: state.Commit, Term: state.Term, ConfState: voters},
		})
	}
	if err == nil {
		err = log.SaveSnapshot(walpb.Snapshot{Index: state.Commit, Term: state.Term, ConfState: &voters})
	}
	return state, errors.Join(err, log.Close())
}
