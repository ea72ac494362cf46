package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
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
