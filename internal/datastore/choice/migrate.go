package choice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
)

// retired is the suffix that a SQLite database gets when it is no longer the
// state.
const retired = ".before-etcd"

// migrate turns a server with SQLite into the first etcd member, with all its
// objects. It does nothing if there is no SQLite database. The database is not
// changed until the member is on the disk, and is renamed then. If migrate is
// interrupted, the next start continues it.
func migrate(ctx context.Context, dir datadir.Dir, settings etcd.Config) error {
	if _, err := os.Stat(dir.SQLite()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	log := logrus.WithField("component", "datastore")
	if !etcd.Exists(settings.Dir) {
		log.Infof("Moving the state from SQLite (%s) to etcd", dir.SQLite())
	}
	sqlite := newSQLite(dir)
	if err := etcd.Migrate(ctx, settings, sqlite.Export); err != nil {
		return fmt.Errorf("move the state from SQLite to etcd: %w. The state is still in SQLite: without cluster-init the server continues to use it", err)
	}
	kept, err := sqlite.Retire(retired)
	if err != nil {
		return err
	}
	log.Infof("The state is now in etcd. The SQLite database is kept as %s: remove it when you no longer need it", kept)
	return nil
}

// KeepsSQLite tells whether the state is in SQLite now. It ignores the flags,
// which take effect at the next start.
func KeepsSQLite(dir datadir.Dir) bool {
	_, err := os.Stat(dir.SQLite())
	return err == nil && !etcd.Exists(dir.Etcd())
}
