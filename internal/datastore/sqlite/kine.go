// Package sqlite is the datastore of a single server: a server.Backend of kine
// over a SQLite database, and kine's etcd API for it, for clients in this process
// (package direct) and, for etcdctl and the like, on a unix socket that only root
// can open. kine's own backend for SQLite is not used: it writes 40 KB to the disk
// for each renewal of a lease, and polls.
//
// One goroutine, the writer, does all changes, those that wait in one
// transaction, and then publishes them in one step: whoever reads finds them,
// every watch has them. A change is acknowledged when it has reached the disk
// (WAL journal and synchronous=FULL, checked on every connection), so it
// survives a kill or a power cut, but for two kinds that need less:
//
//	deferred   events, and deletions of what would go by itself: acknowledged
//	           at once, written together within seconds, or with the next
//	           durable change; so what happened before a durable change is
//	           there if that is
//	volatile   renewals that change nothing but a time: acknowledged at once,
//	           written at an orderly stop, with the revision they had
//
// Both are in memory until then, and seen by every read and watch as all else.
// Revisions are reserved in blocks, so that one that was seen and lost is not
// used again. After a crash all of them count as compacted: who saw something
// that is lost must look again, and finds each Lease changed after all it saw.
// An orderly stop loses nothing but the volatile versions that others followed.
//
// writer.go and transaction.go change; log.go is their end of the database,
// memory.go what is not in it; read.go and watch.go are for the others, state.go
// is what all share. The table and its rows are kine's, so an older kedge, or
// k3s, can have been there before and can go on (schema.go).
//
// There is no listener for kine's metrics: package measure has others. What
// compaction frees is used again; the file is made smaller only when most of it
// is free (Backend.shrink). Rewriting all of it at each start, as kine does by
// default, wears SD cards out.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	kedge "github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
)

// name is that of the component.
const name = "datastore"

// Config says where a Datastore is.
type Config struct {
	// Dir is the folder of the database, made if it is not there.
	Dir string
	// Socket is the path of the unix socket for etcd clients. Its folder is
	// made if it is not there, for root only.
	Socket string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	config  Config
	version string
	backend *Backend // nil until Run
	// api is nil before the datastore is ready for the first time.
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

// Run implements component.Component. It is ready once the etcd API answers,
// and fails, with a message that says what to do, when the database cannot be
// used or, later, can no longer be trusted.
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
	api.Close()
	if failure := faults.err(); failure != nil {
		return failure
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// answerUnary is around plain requests. A database error, whatever it passed
// for, is a plain status to the client, and after a fatal one there is no other
// answer.
func (f *faults) answerUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, req)
	var failure fault
	if fatal := f.err(); fatal != nil {
		err = fatal
	}
	if errors.As(err, &failure) {
		return nil, failure.GRPCStatus().Err()
	}
	return response, err
}
