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

// retired is what is added to the name of a SQLite database that is no longer the
// state.
const retired = ".before-etcd"

// migrate makes of a server with SQLite, if it is one, the first member of etcd, with
// all that it has. The database stays as it is until there is a member on the disk,
// and then is put aside: whenever it is interrupted, the next start goes on.
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
		return fmt.Errorf("move the state from SQLite to etcd: %w. It is in SQLite still: without cluster-init the server goes on with that", err)
	}
	kept, err := sqlite.Retire(retired)
	if err != nil {
		return err
	}
	log.Infof("The state is in etcd now. What it was in SQLite is kept as %s: remove it when you no longer need it", kept)
	return nil
}

// KeepsSQLite tells whether the state is in SQLite, whatever the flags say: what
// they ask for is done at the next start.
func KeepsSQLite(dir datadir.Dir) bool {
	_, err := os.Stat(dir.SQLite())
	return err == nil && !etcd.Exists(dir.Etcd())
}
