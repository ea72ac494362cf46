// Package sqldb is a datastore in a PostgreSQL, MySQL or MariaDB database of
// the user's, which several servers may share: a server.Backend of kine, and
// etcd's API for it (package etcdapi). The server package makes it of
// --datastore-endpoint.
//
// The table is kine's, made by kine's own drivers, and what its rows mean is
// kine's too, so that k3s can have been there before and can go on. What works
// on it is not: kine's ends the process when a transaction cannot be committed
// (pkg/drivers/generic/tx.go), takes a list that broke off for a whole one
// (pkg/logstructured/sqllog, RowsToEvents), and tells of progress before it has
// handed over all events.
//
// Every change is a row, whose id, from the database's sequence, is its
// revision. The unique index on a key and the revision it follows lets one of
// several servers win, so all that is shared is in the database. Rows may appear
// out of order; poll.go puts that right, and is how a server learns of the
// others' changes, within a second. A change is as durable as the database makes
// a committed transaction.
//
// When the database goes away, requests fail with a message that says so, and
// all goes on when it is back.
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

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
)

// name is that of the component.
const name = "datastore"

const (
	// connections is how many a server uses at most. PostgreSQL lets 100 in,
	// for all servers and others.
	connections = 20
	// idleTime is how long a connection may be idle before it is closed.
	idleTime = 2 * time.Minute
	// retryConnect is how long after a failed try to connect the next one comes,
	// and repeatLog after how long the same fault is logged again.
	retryConnect = time.Second
	repeatLog    = time.Minute
	// prepareTimeout is how long making the table may take.
	prepareTimeout = 2 * time.Minute
)

// Config says where a Datastore is.
type Config struct {
	// Endpoint is postgres://… or mysql://… as k3s has it. It holds a password.
	Endpoint string
	TLS      datastore.TLS
	// Socket is the path of the unix socket for etcd clients. Its folder is
	// made if it is not there, for root only.
	Socket string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	socket string
	target *target
	faults *faults
	// backend is nil before the database was reached.
	backend atomic.Pointer[Backend]
	// api is nil before the datastore is ready for the first time.
	api atomic.Pointer[etcdapi.Server]
	// leaked are the connections of this process that Prepare left.
	leaked map[int64]string
}

// New returns the datastore at an endpoint, or what is wrong with the settings.
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
// reached, and fails, with a message that says what to do, when that does not
// let kedge in.
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
		Backend: backend, Meter: backend.meter, Socket: d.socket, Answer: d.faults.answerUnary,
	})
	if err != nil {
		return err
	}
	d.api.Store(api)
	defer api.Close()
	// First, so that nobody waits for a poll of a database that is away.
	defer stopBackend()
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-api.Failed():
		return err
	}
}

// open connects to the database, once it can be reached, and makes what is
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
			d.faults.wrote()
			log.Infof("Using %s", d.target)
			return db, nil
		}
		if explained, fatal := d.target.explain(err); fatal || ctx.Err() != nil {
			db.Close()
			return nil, explained
		}
		_ = d.faults.note(err)
		select {
		case <-ctx.Done():
		case <-time.After(retryConnect):
		}
	}
}

// connect connects to the database, and makes it if it is missing.
func (d *Datastore) connect(ctx context.Context, db *sql.DB) error {
	err := db.PingContext(ctx)
	if d.target.dialect.missing(err) {
		err = d.make(ctx, err)
	}
	return err
}

// make makes the database, whose absence is missing.
func (d *Datastore) make(ctx context.Context, missing error) error {
	if d.target.makeDatabase == nil {
		return nil
	}
	if err := d.target.makeDatabase(ctx); err != nil {
		return errors.Join(missing, err)
	}
	return nil
}

// prepare makes the database and its table if they are missing, with kine's own
// driver, which is not used for more.
func (d *Datastore) prepare(ctx context.Context, source string) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	_, _, err := d.target.dialect.driver(ctx, &running, &drivers.Config{
		DataSourceName: source, BackendTLSConfig: d.target.tls,
	})
	return err
}

// start starts the backend, again and again if the database goes away meanwhile.
func (d *Datastore) start(ctx, backendCtx context.Context, backend *Backend) error {
	for {
		err := backend.Start(backendCtx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if explained, fatal := d.target.explain(err); fatal {
			return fmt.Errorf("start with database: %w", explained)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryConnect):
		}
	}
}
