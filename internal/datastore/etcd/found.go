package etcd

import (
	"encoding/json"
	"errors"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// database returns the path of the database of the member in a folder.
func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// begin writes the log of a new cluster that has only added its single member,
// and a snapshot of that state.
//
//upstream:relies-on go.etcd.io/etcd/etcdutl/v3/snapshot/v3_snapshot.go v3Manager.saveWALAndSnap
func begin(logger *zap.Logger, dir string, cluster *membership.RaftCluster, self *membership.Member) (*raftpb.HardState, error) {
	id := uint64(self.ID)
	state := &raftpb.HardState{Term: proto.Uint64(1), Vote: &id, Commit: proto.Uint64(1)}
	voters := &raftpb.ConfState{Voters: []uint64{id}}
	text, err := json.Marshal(self)
	if err != nil {
		return state, err
	}
	added, err := proto.Marshal(&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: &id, Context: text})
	if err != nil {
		return state, err
	}
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: &id, ClusterID: proto.Uint64(uint64(cluster.ID()))})
	if err != nil {
		return state, err
	}
	log, err := wal.Create(logger, filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		return state, err
	}
	entry := &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Term: state.Term, Index: state.Commit, Data: added}
	err = log.Save(state, []*raftpb.Entry{entry})
	if err == nil {
		err = snap.New(logger, filepath.Dir(database(dir))).SaveSnap(&raftpb.Snapshot{
			Data:     etcdserver.GetMembershipInfoInV2Format(logger, cluster),
			Metadata: &raftpb.SnapshotMetadata{Index: state.Commit, Term: state.Term, ConfState: voters},
		})
	}
	if err == nil {
		err = log.SaveSnapshot(&walpb.Snapshot{Index: state.Commit, Term: state.Term, ConfState: voters})
	}
	return state, errors.Join(err, log.Close())
}
