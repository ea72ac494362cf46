// Package sqldb is a datastore in a PostgreSQL, MySQL or MariaDB database of the
// user, which several servers may share. It implements a server.Backend of kine,
// and serves etcd's API for it (package etcdapi). Package choice makes it if
// datastore-endpoint names such a database.
//
// The table is kine's: kine's own drivers make it, and its rows mean what they
// mean for kine. A cluster can therefore come from k3s and go back to it. The
// code that works on the table is not kine's, for two reasons. kine ends the
// process when a transaction cannot be committed (pkg/drivers/generic/tx.go). It
// takes a list that broke off for a complete one (pkg/logstructured/sqllog,
// RowsToEvents).
//
// Every change is a row. Its id comes from the database's sequence and is its
// revision. A unique index on the key and the revision that a change follows lets
// only one of several servers win, so the database has all the state that servers
// share. Rows may appear out of order. poll.go puts them in order, and tells a
// server of the others' changes within a second. A change is as durable as a
// committed transaction of the database.
//
// While the database is away, requests fail with a message that says so. When it
// is back, everything continues.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
)

// name is the name of the component.
const name = "datastore"

const (
	// connections limits the connections of one server. By default PostgreSQL
	// accepts 100 in all.
	connections = 20
	// idleTime is how long a connection may be idle before it is closed.
	idleTime = 2 * time.Minute
	// retryConnect is the pause after a failed attempt to connect. repeatLog is
	// the least time between two log lines about the same fault.
	retryConnect = time.Second
	repeatLog    = time.Minute
)

// Config says where the database is.
type Config struct {
	// Endpoint is postgres://… or mysql://…, in k3s's form. It contains a
	// password.
	Endpoint string
	TLS      datastore.TLS
	// Socket is the path of the unix socket for etcd clients. Its folder is made,
	// for root only, if it does not exist.
	Socket string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	socket string
	target *target
	faults *faults
	// backend is nil until the database has been reached.
	backend atomic.Pointer[Backend]
	// api is nil until the datastore is ready for the first time.
	api atomic.Pointer[etcdapi.Server]
}

// New returns the datastore at an endpoint. It fails if the settings are wrong.
// It connects to nothing.
func New(c Config) (*Datastore, error) {
	target, err := parse(c.Endpoint, c.TLS)
	if err != nil {
		return nil, err
	}
	return &Datastore{socket: c.Socket, target: target, faults: newFaults(target)}, nil
}

// Name implements component.Component.
func (d *Datastore) Name() string { return name }

// Endpoint implements datastore.Datastore.
func (d *Datastore) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{
		URL:       "unix://" + d.socket,
		NewClient: func() *kubernetes.Client { return d.api.Load().NewClient() },
		Shared:    true,
	}
}

// Run implements component.Component. It waits for a database that cannot be
// reached. If the database refuses kedge, Run fails with a message that says what
// to do.
func (d *Datastore) Run(ctx context.Context, ready func()) error {
	db, err := d.open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	backendCtx, stopBackend := context.WithCancel(context.WithoutCancel(ctx))
	backend := newBackend(db, d.target.dialect, d.faults)
	d.backend.Store(backend)
	defer backend.running.Wait()
	defer stopBackend()
	if err := d.start(ctx, backendCtx, backend); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	api, err := etcdapi.Serve(etcdapi.Config{
		Backend: backend, Meter: backend.meter, Socket: d.socket, Answer: etcdapi.AnswerFaults,
	})
	if err != nil {
		return err
	}
	d.api.Store(api)
	defer api.Close()
	// The backend stops first, so that nobody waits for a poll of a database that
	// is away.
	defer stopBackend()
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-api.Failed():
		return err
	}
}

// open waits until the database can be reached, connects to it, and makes what is
// missing in it.
func (d *Datastore) open(ctx context.Context) (*sql.DB, error) {
	log := logrus.WithField("component", name)
	db := sql.OpenDB(d.target.connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxIdleTime(idleTime)
	for {
		err := d.connect(ctx, db)
		if err == nil {
			err = d.prepare(ctx, d.target.source)
		}
		if err == nil {
			err = d.keepCase(ctx, db)
		}
		var advice string
		if err == nil {
			advice, err = d.advice(ctx, db)
		}
		if err == nil {
			d.faults.wrote()
			log.Infof("Using %s", d.target)
			if advice != "" {
				log.Warn(advice)
			}
			return db, nil
		}
		if explained, fatal := d.target.explain(err); fatal || ctx.Err() != nil {
			db.Close()
			return nil, explained
		}
		_ = d.faults.note(err)
		_ = loop.Sleep(ctx, retryConnect) // after the end of ctx, the next attempt returns why
	}
}

// connect connects to the database, and makes the database if it is missing.
func (d *Datastore) connect(ctx context.Context, db *sql.DB) error {
	err := db.PingContext(ctx)
	if d.target.dialect.missing(err) {
		err = d.make(ctx, err)
	}
	return err
}

// make makes the database. missing is the error that showed its absence.
func (d *Datastore) make(ctx context.Context, missing error) error {
	if d.target.makeDatabase == nil {
		return nil
	}
	if err := d.target.makeDatabase(ctx); err != nil {
		return errors.Join(missing, err)
	}
	return nil
}

// prepare makes the database and its table if they are missing. It uses kine's
// own driver for that, and for nothing else. It may take as long as it needs: an
// index of a large table takes minutes on a slow database.
func (d *Datastore) prepare(ctx context.Context, source string) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	_, _, err := d.target.dialect.driver(ctx, &running, &drivers.Config{
		DataSourceName: source, BackendTLSConfig: d.target.tls,
	})
	return err
}

// keepCase makes the table tell apart names that differ in case, and sort names by their
// bytes, as etcd does. kine's table for MySQL does neither. Names of roles may have
// upper-case letters, and a list in parts would leave out keys. The change of a large
// table takes minutes, and happens once.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/mysql/mysql.go
func (d *Datastore) keepCase(ctx context.Context, db *sql.DB) error {
	if d.target.dialect.folds == "" {
		return nil
	}
	var folds int
	if err := db.QueryRowContext(ctx, d.target.dialect.folds).Scan(&folds); err != nil || folds == 0 {
		return err
	}
	_, err := db.ExecContext(ctx, d.target.dialect.keepCase)
	if err == nil {
		return nil
	}
	if explained, fatal := d.target.explain(err); fatal {
		logrus.WithField("component", name).Warnf("The table kine takes names for equal that differ only in upper and lower case. "+
			"Let the user change the table, with GRANT ALL ON %s.*, and restart kedge: %v", d.target.database, explained)
		return nil
	}
	return err
}

// advice returns what the user should change in the settings of the database, or an
// empty text. Servers hand changes to their clients as soon as they see them. If a
// crash of the database undoes such a change, its revision is used for another
// one, and the clients never notice.
func (d *Datastore) advice(ctx context.Context, db *sql.DB) (string, error) {
	if d.target.dialect.early == "" {
		return "", nil
	}
	var early bool
	if err := db.QueryRowContext(ctx, d.target.dialect.early).Scan(&early); err != nil || !early {
		return "", err
	}
	return fmt.Sprintf("%s shows changes before they are on its disk. After a crash of the database, servers may remember changes that are gone. %s",
		d.target, d.target.dialect.beOnTime), nil
}

// start starts the backend. If the database goes away meanwhile, it tries again.
func (d *Datastore) start(ctx, backendCtx context.Context, backend *Backend) error {
	return wait.PollUntilContextCancel(ctx, retryConnect, true, func(ctx context.Context) (bool, error) {
		err := backend.Start(backendCtx)
		if err == nil || ctx.Err() != nil {
			return true, err
		}
		if explained, fatal := d.target.explain(err); fatal {
			return false, fmt.Errorf("start with database: %w", explained)
		}
		return false, nil
	})
}
