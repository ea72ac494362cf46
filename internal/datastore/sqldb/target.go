package sqldb

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	kinetls "github.com/k3s-io/kine/pkg/tls"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// defaultDatabase is the name of the database if the endpoint has none; kine uses
// the same.
const defaultDatabase = "kubernetes"

// target describes a database and how to reach it.
type target struct {
	dialect   *dialect
	connector driver.Connector
	// source and tls are what kine's driver needs to reach the same database.
	// restoring is the source with which kine's driver makes the table that a
	// restore fills. It is empty if kine's driver does not make that table.
	source, restoring string
	tls               kinetls.Config
	// makeDatabase makes a database that is missing. It is nil if kine's driver
	// does that.
	makeDatabase func(context.Context) error
	// These are shown to users. The password is not.
	host, database, user string
}

// String describes the database for users, without the password.
func (t *target) String() string {
	return fmt.Sprintf("%s on %s, database %s, user %s", t.dialect.title, t.host, t.database, t.user)
}

// parse reads an endpoint. Its errors contain no text that could be a password.
func parse(endpoint string, files datastore.TLS) (*target, error) {
	tlsConfig, err := files.Config()
	if err != nil {
		return nil, err
	}
	scheme, source, _ := strings.Cut(endpoint, "://")
	t := &target{tls: kinetls.Config{CAFile: files.CAFile, CertFile: files.CertFile, KeyFile: files.KeyFile}}
	switch scheme {
	case "postgres", "postgresql":
		err = t.parsePostgres(source, files)
	case "mysql":
		err = t.parseMySQL(source, tlsConfig)
	default:
		err = errors.New("datastore-endpoint: begins with neither postgres:// nor mysql://")
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (t *target) parsePostgres(source string, files datastore.TLS) error {
	errFormat := errors.New("datastore-endpoint: is not postgres://USER:PASSWORD@HOST:5432/DATABASE: " +
		"characters in the password that are neither letters nor digits must be written as in a URL, such as %40 for @")
	u, err := url.Parse("postgres://" + source)
	if err != nil {
		return errFormat
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/" + defaultDatabase
	}
	// kine's driver converts the name to lower case too, and its CREATE DATABASE
	// must make the same one.
	u.Path = strings.ToLower(u.Path)
	query := u.Query()
	for key, file := range map[string]string{"sslrootcert": files.CAFile, "sslcert": files.CertFile, "sslkey": files.KeyFile} {
		if file != "" && !query.Has(key) {
			query.Set(key, file)
			if !query.Has("sslmode") {
				query.Set("sslmode", "verify-full")
			}
		}
	}
	u.RawQuery = query.Encode()
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		// The error begins with the endpoint, which contains the password. Its
		// cause does not.
		if cause := errors.Unwrap(err); cause != nil && !mentions(cause, u.User) {
			return fmt.Errorf("%w: %w", errFormat, cause)
		}
		return errFormat
	}
	config.DialFunc = dial
	t.dialect, t.connector, t.source = postgres, stdlib.GetConnector(*config), strings.TrimPrefix(u.String(), "postgres://")
	query.Set("search_path", restoringSchema)
	u.RawQuery = query.Encode()
	t.restoring = strings.TrimPrefix(u.String(), "postgres://")
	t.makeDatabase = func(ctx context.Context) error { return makePostgres(ctx, config) }
	t.host, t.database, t.user = fmt.Sprintf("%s:%d", config.Host, config.Port), config.Database, config.User
	if strings.HasPrefix(config.Host, "/") {
		t.host = config.Host
	}
	return nil
}

// makePostgres makes the database. kine's driver does that too, but continues
// without a database if it lacks the right.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/pgsql/pgsql.go createDBIfNotExist
func makePostgres(ctx context.Context, config *pgx.ConnConfig) error {
	admin := config.Copy()
	admin.Database = "postgres"
	conn, err := pgx.ConnectConfig(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{config.Database}.Sanitize())
	return err
}

// mentions tells whether an error contains the user's password.
func mentions(err error, user *url.Userinfo) bool {
	password, _ := user.Password()
	return password != "" && strings.Contains(err.Error(), password)
}

func (t *target) parseMySQL(source string, tlsConfig *tls.Config) error {
	config, err := mysql.ParseDSN(source)
	if err != nil {
		return errors.New("datastore-endpoint: is not mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE, " +
			"with the password unescaped")
	}
	config.DBName = cmp.Or(config.DBName, defaultDatabase)
	// kine's driver needs the source without TLS: it adds the files' TLS itself.
	t.source = config.FormatDSN()
	if tlsConfig != nil {
		config.TLS = tlsConfig
	}
	config.DialFunc = dial
	config.Logger = &mysql.NopLogger{}
	if t.connector, err = mysql.NewConnector(config); err != nil {
		return fmt.Errorf("datastore-endpoint: %w", err)
	}
	t.dialect, t.host, t.database, t.user = mySQL, config.Addr, config.DBName, config.User
	return nil
}

// unansweredTime is how long sent data may stay unacknowledged before the
// connection is given up. The kernel's own limit is a quarter of an hour, so a
// poll would hang that long on a host that has vanished.
const unansweredTime = 15 * time.Second

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{
		Timeout: unansweredTime,
		Control: func(network, _ string, conn syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var err error
			controlled := conn.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unansweredTime.Milliseconds()))
			})
			return errors.Join(controlled, err)
		},
	}
	return dialer.DialContext(ctx, network, address)
}
