package sqldb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
)

// faults learns of every error of the database: it is logged, once a minute at
// most, and the request fails.
type faults struct {
	target *target
	log    *logrus.Entry

	mu sync.Mutex
	// failing is why the last try failed, nil if it did not.
	failing error
	said    time.Time
}

func newFaults(target *target) *faults {
	return &faults{target: target, log: logrus.WithField("component", name)}
}

// fault is an error of the database as a client gets it.
type fault struct{ error }

var _ etcdapi.Fault = fault{}

// Unwrap lets errors.Is find the cause.
func (f fault) Unwrap() error { return f.error }

// GRPCStatus is what grpc makes the answer of a request from.
func (f fault) GRPCStatus() *status.Status { return status.New(codes.Unavailable, f.Error()) }

// note records err, which may be nil, and returns what a client is to be told.
func (f *faults) note(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	// One that was noted already, or of etcd's own, such as a compacted revision.
	if answer := (interface{ GRPCStatus() *status.Status })(nil); errors.As(err, &answer) {
		return err
	}
	explained, _ := f.target.explain(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil || time.Since(f.said) >= repeatLog {
		f.log.Warnf("%v. It is tried again and again", explained)
		f.said = time.Now()
	}
	f.failing = explained
	return fault{explained}
}

// wrote records that the database works.
func (f *faults) wrote() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil {
		f.failing = nil
		f.log.Infof("%s works again", f.target)
	}
}

// present returns what is wrong now, nil if nothing is.
func (f *faults) present() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// answerUnary is around plain requests: a database error, whatever it passed
// for, is a plain status to the client.
func (f *faults) answerUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	var failure etcdapi.Fault
	if errors.As(err, &failure) {
		return nil, failure.GRPCStatus().Err()
	}
	return response, err
}

// explain turns an error into one that says what to do; fatal says that trying
// again will not help.
//
//upstream:relies-on github.com/jackc/pgx/v5/pgconn/pgconn.go startTLS
//upstream:relies-on std/crypto/tls/conn.go Conn.readRecordOrCCS
func (t *target) explain(err error) (explained error, fatal bool) {
	var (
		pg          *pgconn.PgError
		my          *mysql.MySQLError
		certificate *tls.CertificateVerificationError
		authority   x509.UnknownAuthorityError
		alert       tls.AlertError
		code        string
		number      uint16
	)
	if errors.As(err, &pg) {
		code = pg.Code
	}
	if errors.As(err, &my) {
		number = my.Number
	}
	switch {
	case code == pgerrcode.InvalidPassword, code == pgerrcode.InvalidAuthorizationSpecification, number == mysqlAccessDenied:
		return fmt.Errorf("%s does not let kedge in: check user and password in datastore-endpoint, and what the database "+
			"admits from this host (for PostgreSQL pg_hba.conf, and datastore-certfile if it wants a certificate): %w", t, err), true
	case code == pgerrcode.InvalidCatalogName, number == mysqlNoDatabase, number == mysqlDatabaseDenied:
		return fmt.Errorf("%s: there is no database %s that the user may use, and the user may not make it: "+
			"make it, owned by %s, or let the user create databases: %w", t, t.database, t.user, err), true
	case code == pgerrcode.InsufficientPrivilege, number == mysqlTableDenied:
		return fmt.Errorf("%s: the user may not make or use the table kine: make the user the owner of the database: %w", t, err), true
	case code == pgerrcode.TooManyConnections, number == mysqlTooManyConnections:
		return fmt.Errorf("%s has too many connections: let in more (max_connections); each server uses up to %d: %w", t, connections, err), false
	case code == pgerrcode.ReadOnlySQLTransaction:
		return fmt.Errorf("%s can be read only: name the primary in datastore-endpoint "+
			"(with several hosts: target_session_attrs=read-write): %w", t, err), false
	case code == pgerrcode.DiskFull:
		return fmt.Errorf("%s has no space left on its disk: %w", t, err), false
	case pg != nil, my != nil:
		return fmt.Errorf("%s: %w", t, err), false
	case errors.As(err, &certificate), errors.As(err, &authority), errors.As(err, &alert),
		errors.Is(err, mysql.ErrNoTLS), strings.Contains(err.Error(), "refused TLS"), strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Errorf("%s and kedge cannot agree on TLS: check datastore-cafile, which must be the authority of the "+
			"database's certificate, the host's name in it, and datastore-certfile and datastore-keyfile: %w", t, err), true
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time: check whether it runs: %w", t, err), false
	}
	return fmt.Errorf("%s cannot be reached: check whether it runs, and the host and port in datastore-endpoint: %w", t, err), false
}
