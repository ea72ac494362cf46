// Package sqlite is the datastore of a single server: a server.Backend of kine
// over a SQLite database, with kine's etcd API. Clients in this process use it
// directly (package direct). etcdctl and similar tools use a unix socket that only
// root can open. kine's own backend for SQLite is not used, because it writes 40
// KB to the disk for each renewal of a lease, and polls.
//
// One goroutine, the writer, makes all changes. It makes all waiting changes in
// one transaction and then publishes them in one step: from then on every reader
// finds them, and every watch has their events. A change is acknowledged when it
// has reached the disk (WAL journal and synchronous=FULL, checked on every
// connection), so it survives a kill or a power cut. Two kinds of changes need
// less:
//
//	deferred   events, and deletions of keys that would expire by themselves:
//	           acknowledged at once, and written together within seconds, or
//	           with the next durable change; so if a durable change survives,
//	           everything before it survives too
//	volatile   renewals that change nothing except a time: acknowledged at once,
//	           written at an orderly stop, with the revision they had
//
// Until then both are in memory, and every read and watch sees them like all other
// changes. Revisions are reserved in blocks, so that a revision that was seen and
// then lost is never used again. After a crash all reserved revisions count as
// compacted. A client that saw a lost change must therefore list again, and finds
// every Lease at a newer revision than all that it saw. An orderly stop loses only
// the volatile versions that later ones replaced.
//
// writer.go and transaction.go make changes; log.go is their connection to the
// database, and memory.go has the changes that are not in it. read.go and watch.go
// serve readers, and state.go is what all of them share. The table and its rows
// are kine's, so an older kedge or k3s can have used the database before, and can
// use it again (schema.go).
//
// There is no listener for kine's metrics: package measure has others. Space that
// compaction frees is reused. The file is made smaller only when most of it is
// free (Backend.shrink). Rewriting the whole file at each start, as kine does by
// default, would wear out SD cards.
package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/kedge-dev/kedge/internal/base/component"
	kedge "github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
)

// name is the name of the component.
const name = "datastore"

// Config says where the database is.
type Config struct {
	// Dir is the folder of the database. It is made if it does not exist.
	Dir string
	// Socket is the path of the unix socket for etcd clients. Its folder is made,
	// for root only, if it does not exist.
	Socket string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	config  Config
	version string
	backend *Backend // nil until Run
	// api is nil until the datastore is ready for the first time.
	api atomic.Pointer[etcdapi.Server]
}

// New returns the datastore in config.Dir.
func New(config Config) *Datastore {
	return &Datastore{config: config, version: kedge.Version}
}

// Name implements component.Component.
func (d *Datastore) Name() string { return name }

// Endpoint implements datastore.Datastore.
func (d *Datastore) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{
		URL:       "unix://" + d.config.Socket,
		NewClient: func() *kubernetes.Client { return d.api.Load().NewClient() },
	}
}

// Run implements component.Component. It is ready once the etcd API answers. It
// fails, with a message that says what to do, if the database cannot be used or
// can no longer be trusted.
func (d *Datastore) Run(ctx context.Context, ready func()) (err error) {
	file, err := filepath.Abs(filepath.Join(d.config.Dir, stateFile))
	if err != nil {
		return fmt.Errorf("find database: %w", err)
	}
	checked, err := prepare(ctx, file, d.version)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("prepare database: %w", explain(file, err))
	}
	faults := newFaults(file)
	backend := newBackend(file, faults)
	backendCtx, stopBackend := context.WithCancel(context.WithoutCancel(ctx))
	defer backend.wait()
	defer stopBackend()
	if err := backend.Start(backendCtx); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	d.backend = backend
	if !checked {
		backend.running.Go(func() { backend.check(backendCtx) })
	}

	api, err := etcdapi.Serve(etcdapi.Config{
		Backend: backend, Meter: backend.meter, Socket: d.config.Socket, Answer: faults.answerUnary,
	})
	if err != nil {
		return err
	}
	d.api.Store(api)

	err = api.Probe(ctx)
	if err == nil {
		ready()
		select {
		case <-ctx.Done():
		case err = <-faults.failed:
		case err = <-api.Failed():
		}
	}
	if failure := faults.err(); failure != nil {
		api.Abort()
		return component.AtOnce(failure)
	}
	api.Close()
	if failure := faults.err(); failure != nil {
		return component.AtOnce(failure)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// answerUnary wraps unary requests, as etcdapi.AnswerFaults does. After a fatal error it
// answers every request with that error.
func (f *faults) answerUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return etcdapi.AnswerFaults(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		response, err := handle(ctx, req)
		if fatal := f.err(); fatal != nil {
			err = fatal
		}
		return response, err
	})
}
