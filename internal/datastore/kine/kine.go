// Package kine is the datastore of a single server: a server.Backend of kine
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
// There is no listener for kine's metrics. The database file is never shrunk:
// what compaction frees is used again, and rewriting all of it at each start, as
// kine does by default, wears SD cards out.
package kine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kine/direct"
	kedge "github.com/kedge-dev/kedge/internal/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	progressInterval    = 5 * time.Second // kine's own default
	emulatedETCDVersion = "3.6.11"        // has RequestWatchProgress, which the API server asks for
)

// name is that of the component.
const name = "datastore"

// stopTimeout is how long clients have to end their streams at a stop. The API
// server has ended before, so it is only for others.
const stopTimeout = 2 * time.Second

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
	// direct is nil before the datastore is ready for the first time.
	direct atomic.Pointer[direct.Server]
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
		NewClient: func() *kubernetes.Client { return d.direct.Load().NewClient() },
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
	if err := prepare(ctx, file, d.version); err != nil {
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

	listener, err := listen(d.config.Socket)
	if err != nil {
		return err
	}
	grpcServer := newServer(faults)
	etcd := server.New(&discreet{backend}, "unix", progressInterval, emulatedETCDVersion)
	etcd.Register(grpcServer)
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(listener) }()
	inProcess := direct.NewServer(backend, etcd, faults.answerUnary)
	d.direct.Store(inProcess)

	err = d.probe(ctx)
	if err == nil {
		ready()
		select {
		case <-ctx.Done():
		case err = <-faults.failed:
		case err = <-served:
			served <- nil
			err = fmt.Errorf("serve etcd API: %w", err)
		}
	}
	inProcess.Close()
	stopServer(grpcServer)
	<-served
	if failure := faults.err(); failure != nil {
		return failure
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen makes the socket, which nobody but root can reach.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of the datastore's socket: %w", err)
	}
	if other, err := net.Dial("unix", socket); err == nil {
		other.Close()
		return nil, fmt.Errorf("%s is served by another process: stop the other kedge on this host first", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket of the datastore: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for etcd clients: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect the datastore's socket: %w", err)
	}
	return listener, nil
}

// newServer makes a gRPC server with etcd's limits and times
// (go.etcd.io/etcd/server/v3/embed/config.go), as kine's pkg/endpoint does.
func newServer(faults *faults) *grpc.Server {
	return grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.MaxRecvMsgSize(direct.MaxRequestBytes),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(faults.answerUnary),
	)
}

// stopServer ends every request and waits for it.
func stopServer(s *grpc.Server) {
	timer := time.AfterFunc(stopTimeout, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

// probe returns nil once the etcd API answers.
func (d *Datastore) probe(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{d.Endpoint().URL}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("make etcd client: %w", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	answer, err := client.Get(ctx, server.HealthKey)
	if err != nil {
		return fmt.Errorf("ask the datastore for its health: %w", err)
	}
	if len(answer.Kvs) != 1 {
		return errors.New("ask the datastore for its health: no health key")
	}
	return nil
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

// discreet is the backend for kine's server, which logs a failed request whole,
// the values of Secrets included, unless its error is a cancellation
// (pkg/server/kv.go). faults has logged what there is to say.
type discreet struct{ *Backend }

// Create implements server.Backend.
func (d *discreet) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	revision, err := d.Backend.Create(ctx, key, value, lease)
	return revision, quietly(err)
}

// Update implements server.Backend.
func (d *discreet) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	revision, kv, ok, err := d.Backend.Update(ctx, key, value, revision, lease)
	return revision, kv, ok, quietly(err)
}

// quietly hides an error of the database from kine's server.
func quietly(err error) error {
	var failure fault
	if errors.As(err, &failure) {
		return quiet{failure}
	}
	return err
}

// quiet is a fault that passes for a cancellation.
type quiet struct{ fault }

// Is is for errors.Is.
func (quiet) Is(target error) bool { return target == context.Canceled }
