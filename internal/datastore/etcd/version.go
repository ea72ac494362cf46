package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/coreos/go-semver/semver"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// settleVersion refuses data that only a newer etcd can read. During a trial of this kedge it
// makes etcd take itself for the older etcd that has written the data. Otherwise etcd would
// change them once all members are new, and the kedge from before could no longer read them.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/version/monitor.go Monitor.decideClusterVersion
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/version/monitor.go Monitor.UpdateStorageVersionIfNeeded
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/version/downgrade.go MustDetectDowngrade
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/schema/schema.go localBinaryVersion
func (m *Member) settleVersion() error {
	data, err := dataVersion(database(m.cfg.Dir))
	if err != nil || data == nil {
		return err
	}
	own := semver.Must(semver.NewVersion(version.Version))
	minor := semver.Version{Major: own.Major, Minor: own.Minor}
	switch {
	case minor.LessThan(*data):
		return fmt.Errorf("the data in %s are those of etcd v%d.%d, and this kedge has etcd v%d.%d, which cannot read them. "+
			"Install a newer kedge, or go back as docs/upgrades.md says (\"Go back\")", m.cfg.Dir, data.Major, data.Minor, own.Major, own.Minor)
	case m.cfg.Trial && data.LessThan(minor):
		m.log.Infof("etcd runs as v%d.%d until this kedge has proven that it works, so that the kedge from before can read the data", data.Major, data.Minor)
		version.Version = data.String()
	}
	return nil
}

// dataVersion returns the minor version of etcd that a member's database is for. It is nil if
// there is no database, or if it is that of a cluster that has not agreed on a version yet.
func dataVersion(file string) (found *semver.Version, err error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	db, err := openDatabase(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Bucket(schema.Meta.Name()) != nil {
			found = schema.ReadStorageVersionFromSnapshot(tx)
		}
		// The members agree on a version first, and then each one changes its database.
		cluster := tx.Bucket(schema.Cluster.Name())
		if cluster == nil {
			return nil
		}
		text := cluster.Get(schema.ClusterClusterVersionKeyName)
		if text == nil {
			return nil
		}
		agreed, err := semver.NewVersion(string(text))
		if err != nil {
			return fmt.Errorf("read the version of etcd in %s: %w", file, err)
		}
		if found == nil || found.LessThan(*agreed) {
			found = agreed
		}
		return nil
	})
	return found, err
}
