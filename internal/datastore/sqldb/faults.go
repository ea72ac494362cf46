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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
)

// faults receives every error of the database. It logs them, at most once a
// minute, and turns them into answers to clients.
type faults struct {
	target *target
	log    *logrus.Entry

	mu sync.Mutex
	// failing is the error of the last attempt, or nil if it succeeded.
	failing error
	said    time.Time
}

func newFaults(target *target) *faults {
	return &faults{target: target, log: logrus.WithField("component", name)}
}

// fault is an error of the database in the form that a client gets.
type fault struct{ error }

var _ etcdapi.Fault = fault{}

// Unwrap lets errors.Is find the cause.
func (f fault) Unwrap() error { return f.error }

// GRPCStatus returns the status that gRPC sends to the client.
func (f fault) GRPCStatus() *status.Status { return status.New(codes.Unavailable, f.Error()) }

// note records err, which may be nil, and returns the error for the client.
func (f *faults) note(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	// Errors that were already noted pass, and so do etcd's own, such as a
	// compacted revision.
	if answer := (interface{ GRPCStatus() *status.Status })(nil); errors.As(err, &answer) {
		return err
	}
	explained, _ := f.target.explain(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil || time.Since(f.said) >= repeatLog {
		f.log.Warnf("%v. Trying again", explained)
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

// present returns the present fault, or nil if there is none.
func (f *faults) present() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// explain adds to err what the user can do. fatal is true if trying again will
// not help.
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
		return fmt.Errorf("%s does not let kedge in: check user and password in datastore-endpoint, and whom the database "+
			"admits from this host (for PostgreSQL pg_hba.conf, and datastore-certfile if it wants a certificate): %w", t, err), true
	case code == pgerrcode.InvalidCatalogName, number == mysqlNoDatabase, number == mysqlDatabaseDenied:
		return fmt.Errorf("%s: the database %s does not exist, or the user may not use it, and the user may not create it: "+
			"create it with %s as its owner, or let the user create databases: %w", t, t.database, t.user, err), true
	case code == pgerrcode.InsufficientPrivilege, number == mysqlTableDenied:
		return fmt.Errorf("%s: the user may not create or use the table kine: make the user the owner of the database: %w", t, err), true
	case code == pgerrcode.TooManyConnections, number == mysqlTooManyConnections:
		return fmt.Errorf("%s has too many connections: increase max_connections; each server uses up to %d: %w", t, connections, err), false
	case code == pgerrcode.ReadOnlySQLTransaction:
		return fmt.Errorf("%s is read-only: name the primary in datastore-endpoint "+
			"(with several hosts: target_session_attrs=read-write): %w", t, err), false
	case code == pgerrcode.DiskFull:
		return fmt.Errorf("%s has no space left on its disk: %w", t, err), false
	case pg != nil, my != nil:
		return fmt.Errorf("%s: %w", t, err), false
	case errors.As(err, &certificate), errors.As(err, &authority), errors.As(err, &alert),
		errors.Is(err, mysql.ErrNoTLS), strings.Contains(err.Error(), "refused TLS"), strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Errorf("%s and kedge cannot agree on TLS: check that datastore-cafile is the authority of the "+
			"database's certificate and that the certificate has the host's name, and check datastore-certfile and datastore-keyfile: %w", t, err), true
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time: check that it runs: %w", t, err), false
	}
	return fmt.Errorf("%s cannot be reached: check that it runs, and check the host and port in datastore-endpoint: %w", t, err), false
}
