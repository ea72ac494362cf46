// Package etcdapi serves etcd's API over a backend of kine. It listens on a unix
// socket that only root can open, for etcdctl and similar tools, and it serves
// clients in this process (package direct). The datastores that are not etcd call
// it.
package etcdapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/direct"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

const (
	progressInterval    = 5 * time.Second // kine's own default
	emulatedETCDVersion = "3.6.11"        // has RequestWatchProgress, which the API server asks for
)

// stopTimeout limits how long clients may take to end their streams when the
// server is closed. The API server has already ended by then, so it matters only
// to other clients.
const stopTimeout = 2 * time.Second

// Config is what Serve needs.
type Config struct {
	Backend direct.Backend
	// Meter notes how long requests take.
	Meter *measure.Meter
	// Socket is the path of the unix socket. Its folder is made if it does not
	// exist.
	Socket string
	// Answer wraps every unary request. Its last argument but one is nil for
	// requests from this process.
	Answer grpc.UnaryServerInterceptor
}

// Server answers requests until it is closed.
type Server struct {
	socket string
	grpc   *grpc.Server
	direct *direct.Server
	failed chan error
	ended  chan struct{}
}

// Serve begins to answer requests. The backend must have been started. It fails
// if the socket cannot be opened.
func Serve(c Config) (*Server, error) {
	listener, err := localapi.Listen(c.Socket)
	if err != nil {
		return nil, err
	}
	backend := &discreet{c.Backend, c.Meter}
	etcd := &keys{server.New(backend, "unix", progressInterval, emulatedETCDVersion), backend}
	answer := ofOneKey(c.Answer)
	s := &Server{
		socket: c.Socket, grpc: newServer(answer), direct: direct.NewServer(backend, etcd, answer),
		failed: make(chan error, 1), ended: make(chan struct{}),
	}
	etcd.register(s.grpc)
	go func() {
		defer close(s.ended)
		if err := s.grpc.Serve(listener); err != nil {
			s.failed <- fmt.Errorf("serve etcd API: %w", err)
		}
	}()
	return s, nil
}

// NewClient returns a client for use in this process.
func (s *Server) NewClient() *kubernetes.Client { return s.direct.NewClient() }

// Failed delivers the error if the socket fails.
func (s *Server) Failed() <-chan error { return s.failed }

// Close ends every watch and waits for the requests that are being answered.
func (s *Server) Close() {
	s.direct.Close()
	timer := time.AfterFunc(stopTimeout, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	<-s.ended
}

// ofOneKey refuses transactions about more than one key, and those about compactKey.
// kine's server recognizes the API server's transactions by their form, and would
// compare one key and change another (pkg/server/create.go, update.go and
// delete.go).
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/create.go isCreate
//upstream:relies-on github.com/k3s-io/kine/pkg/server/update.go isUpdate
//upstream:relies-on github.com/k3s-io/kine/pkg/server/delete.go isDelete
//upstream:relies-on github.com/k3s-io/kine/pkg/server/compact.go isCompact
func ofOneKey(next grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if txn, ok := request.(*pb.TxnRequest); ok {
			key, one := keyOf(txn)
			compacts := len(txn.Compare) == 1 && txn.Compare[0].Target == pb.Compare_VERSION
			if !one || string(key) == compactKey && !compacts {
				return nil, status.Error(codes.Unimplemented, "this datastore accepts only transactions about one key, and none about "+compactKey)
			}
		}
		return next(ctx, request, info, handle)
	}
}

// keyOf returns the key that a transaction is about, and whether that is its only key.
func keyOf(txn *pb.TxnRequest) (key []byte, one bool) {
	first, one := true, true
	note := func(named, end []byte) {
		if first {
			key, first = named, false
		}
		one = one && len(end) == 0 && bytes.Equal(named, key)
	}
	for _, compare := range txn.Compare {
		note(compare.Key, compare.RangeEnd)
	}
	for _, ops := range [][]*pb.RequestOp{txn.Success, txn.Failure} {
		for _, op := range ops {
			if put := op.GetRequestPut(); put != nil {
				note(put.Key, nil)
			}
			if read := op.GetRequestRange(); read != nil {
				note(read.Key, read.RangeEnd)
			}
			if deleted := op.GetRequestDeleteRange(); deleted != nil {
				note(deleted.Key, deleted.RangeEnd)
			}
		}
	}
	return key, one
}

// Abort ends everything without waiting for clients, when there is nothing to answer any more.
func (s *Server) Abort() {
	s.direct.Close()
	s.grpc.Stop()
	<-s.ended
}

// Probe returns nil if etcd's API answers on the socket.
func (s *Server) Probe(ctx context.Context) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + s.socket}, Logger: zap.NewNop()})
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

// Fault is an error of the database in the form that a client gets. Whoever
// creates a Fault has already logged it.
type Fault interface {
	error
	Unwrap() error
	GRPCStatus() *status.Status
}

// AnswerFaults is a Config.Answer. It turns every Fault, also one that is disguised, into a plain status
// for the client.
func AnswerFaults(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	var fault Fault
	if errors.As(err, &fault) {
		return nil, fault.GRPCStatus().Err()
	}
	return response, err
}

// discreet wraps the backend for kine's server. That server logs each failed
// request, with the values of Secrets in it, unless the error is a cancellation
// (pkg/server/kv.go). discreet also notes how long requests take, except
// compactions, which may be slow.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/kv.go KVServerBridge.Range KVServerBridge.Put KVServerBridge.Txn KVServerBridge.Compact
type discreet struct {
	direct.Backend
	meter *measure.Meter
}

func (d *discreet) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	defer d.meter.Done("get", key, time.Now())
	revision, kv, err := d.Backend.Get(ctx, key, revision, keysOnly)
	return revision, kv, quietly(err)
}

func (d *discreet) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	defer d.meter.Done("list", key, time.Now())
	revision, kvs, err := d.Backend.List(ctx, key, end, limit, revision, keysOnly)
	return revision, kvs, quietly(err)
}

func (d *discreet) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	defer d.meter.Done("count", key, time.Now())
	revision, count, err := d.Backend.Count(ctx, key, end, revision)
	return revision, count, quietly(err)
}

func (d *discreet) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	defer d.meter.Done("create", key, time.Now())
	revision, err := d.Backend.Create(ctx, key, value, lease)
	return revision, quietly(err)
}

func (d *discreet) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	defer d.meter.Done("update", key, time.Now())
	revision, kv, ok, err := d.Backend.Update(ctx, key, value, revision, lease)
	return revision, kv, ok, quietly(err)
}

func (d *discreet) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	defer d.meter.Done("delete", key, time.Now())
	revision, kv, ok, err := d.Backend.Delete(ctx, key, revision)
	return revision, kv, ok, quietly(err)
}

func (d *discreet) Compact(ctx context.Context, revision int64) (int64, error) {
	revision, err := d.Backend.Compact(ctx, revision)
	return revision, quietly(err)
}

// quietly marks an error so that kine's server does not log it: one of the database, or that a request was out of time.
func quietly(err error) error {
	var fault Fault
	switch {
	case errors.As(err, &fault):
		return quiet{fault}
	case errors.Is(err, context.DeadlineExceeded):
		return overdue{err}
	}
	return err
}

// quiet is a Fault that kine's server treats as a cancellation.
type quiet struct{ Fault }

// Status returns what the API server answers. Of an error without this method the API server logs
// that it is not one, with all its fields.
func (q quiet) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: q.Error()}
}

// Is is for errors.Is.
func (quiet) Is(target error) bool { return target == context.Canceled }

// overdue says that a request was out of time. kine's server treats it as a cancellation. The meter notes that the
// request was slow.
type overdue struct{ error }

func (o overdue) Unwrap() error { return o.error }

// GRPCStatus returns what a client gets.
func (o overdue) GRPCStatus() *status.Status { return status.New(codes.DeadlineExceeded, o.Error()) }

// Status is as in quiet.
func (o overdue) Status() metav1.Status {
	return apierrors.NewTimeoutError("the datastore did not answer in time", 0).Status()
}

// Is is for errors.Is.
func (overdue) Is(target error) bool { return target == context.Canceled }
