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
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
)

// Migrate makes the first member of a cluster that continues another datastore,
// with its keys, revisions and leases. The member is complete and on the disk
// before one rename puts it into place. Until then an error or a crash leaves
// nothing that counts as a member. If there is a member, Migrate only removes
// leftovers, so it can be called again after an interruption.
func Migrate(ctx context.Context, cfg Config, export datastore.Export) (err error) {
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
	logger := newLogger(m.log, m.fail)
	cluster, err := m.clusterOfOne(logger, name)
	if err != nil {
		return fmt.Errorf("begin etcd's cluster: %w", err)
	}
	self := cluster.MemberByName(name)
	state, err := begin(logger, made, cluster, self)
	if err != nil {
		return fmt.Errorf("begin etcd's log: %w", datadir.Explain(err))
	}
	most, err := limit(cfg.Args)
	if err != nil {
		return err
	}
	large := sizes.NewObjects(most)
	err = fill(ctx, database(made), noting(large, export), func(f *filler, compacted int64) error {
		return f.addMember(self, state, compacted)
	})
	if err != nil {
		return err
	}
	if err := large.Err(allowMore); err != nil {
		return err
	}
	if err := errors.Join(datadir.SyncAll(made), datadir.SyncFolder(filepath.Dir(cfg.Dir))); err != nil {
		return err
	}
	// A folder that exists has no log, so it contains nothing of value.
	return datadir.Replace(filepath.Join(made, "member"), filepath.Join(cfg.Dir, "member"), filepath.Join(made, "old"))
}

// clusterOfOne returns a cluster with this member alone, which has a name.
func (m *Member) clusterOfOne(logger *zap.Logger, name string) (*membership.RaftCluster, error) {
	peers, err := types.NewURLsMap(name + "=" + m.peerURL())
	if err != nil {
		return nil, err
	}
	// The cluster's id is derived from the member's name, which is unique.
	return membership.NewClusterFromURLsMap(logger, name, peers)
}

// allowMore says what to do about objects that are too large. %d is the size of the largest.
const allowMore = "Divide or delete them where they are now, or set etcd-arg: [max-request-bytes=%d] on all servers"

// noting returns an export that also shows the changes to large.
func noting(large *sizes.Objects, export datastore.Export) datastore.Export {
	return func(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
		return export(ctx, func(event *mvccpb.Event) error {
			large.Note(event)
			return each(event)
		})
	}
}

// fill makes a database. At last it calls finish with the revision up to which all is compacted.
func fill(ctx context.Context, file string, export datastore.Export, finish func(f *filler, compacted int64) error) (err error) {
	// The database is synced once it is complete. Until then nobody needs it.
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
		// The last revisions left no key. They must not be used again, and clients
		// that saw them have to list again. etcd continues above the compacted
		// revision.
		compacted = revision
	}
	return written(errors.Join(finish(f, compacted), f.commit()))
}

// written explains an error of writing the database.
func written(err error) error {
	if err != nil {
		err = fmt.Errorf("write etcd's database: %w", datadir.Explain(err))
	}
	return err
}
