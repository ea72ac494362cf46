// Package kine is the datastore of a single server: kine's etcd API over a
// SQLite database, in process, on a unix socket that only root can open.
//
// A write is acknowledged when it has reached the disk (WAL journal and
// synchronous=FULL, checked on every connection), so it survives a kill or a
// power cut. There is no listener for kine's metrics. The database file is
// never shrunk: what compaction frees is used again, and rewriting all of it at
// each start, as kine does by default, wears SD cards out.
package kine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
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
}

// New returns the datastore in config.Dir.
func New(config Config) *Datastore {
	return &Datastore{config: config, version: version.Version}
}

// Name implements component.Component.
func (d *Datastore) Name() string { return name }

// Endpoint implements datastore.Datastore.
func (d *Datastore) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{URL: "unix://" + d.config.Socket}
}

// Run implements component.Component. It is ready once the etcd API answers,
// and fails, with a message that says what to do, when the database cannot be
// used or, later, can no longer be trusted.
func (d *Datastore) Run(ctx context.Context, ready func()) (err error) {
	file, err := filepath.Abs(filepath.Join(d.config.Dir, "state.db"))
	if err != nil {
		return fmt.Errorf("find database: %w", err)
	}
	faults := newFaults(file)
	prepareCtx, preparing := withRequest(ctx)
	err = prepare(prepareCtx, file, d.version, faults)
	switch failure := preparing.failure(); {
	case err != nil && ctx.Err() != nil:
		return nil
	case failure != nil:
		return failure
	case err != nil:
		return fmt.Errorf("prepare database: %w", err)
	}

	// The connections are closed after all who use them have ended.
	dbCtx, closeDB := context.WithCancel(context.WithoutCancel(ctx))
	var connections sync.WaitGroup
	defer connections.Wait()
	defer closeDB()
	dialect, err := openDialect(dbCtx, &connections, faults)
	if err != nil {
		return err
	}

	backendCtx, stopBackend := context.WithCancel(context.WithoutCancel(ctx))
	backend := newBackend(dialect)
	defer backend.wait()
	defer stopBackend()
	startCtx, starting := withRequest(backendCtx)
	err = backend.start(startCtx)
	if failure := starting.failure(); failure != nil {
		return failure
	} else if err != nil {
		return err
	}

	listener, err := listen(d.config.Socket)
	if err != nil {
		return err
	}
	grpcServer := newServer(faults)
	server.New(backend, "unix", progressInterval, emulatedETCDVersion).Register(grpcServer)
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(listener) }()

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
		grpc.MaxRecvMsgSize(2<<20), // a request of 1.5 MiB and what is around it
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(faults.answerUnary),
		grpc.StreamInterceptor(faults.answerStream),
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

// answerUnary is the server's interceptor for plain requests. A database error
// during a request is its answer, whatever kine made of it.
func (f *faults) answerUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, request := withRequest(ctx)
	response, err := handle(ctx, req)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return nil, ctxErr // what was read may be cut short
	}
	if fault := f.answer(request, err); fault != nil {
		return nil, fault
	}
	return response, err
}

// answerStream is the same for watches: a stream that may have missed an event
// ends, and its client begins anew where it stood.
func (f *faults) answerStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, request := withRequest(stream.Context())
	handled := make(chan error, 1)
	go func() { handled <- handle(srv, &requestStream{stream, ctx}) }()
	select {
	case err := <-handled:
		return err
	case <-request.failed:
		return f.answer(request, nil)
	}
}

type requestStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *requestStream) Context() context.Context { return s.ctx }
