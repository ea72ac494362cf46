// Package datastores starts a datastore of kedge for tests of upstream, and returns the client that the API server
// would have of it. It is no internal package, because package testserver takes the place of a package of upstream.
package datastores

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/sqldb"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// These variables say what Start starts.
const (
	// KindVariable is SQLite, SQL or etcd.
	KindVariable = "KEDGE_DATASTORE_KIND"
	// EndpointVariable is where SQL is. Each test has a database of its own, whose name begins with the last part of
	// the endpoint.
	EndpointVariable = "KEDGE_DATASTORE_ENDPOINT"
	// FilesVariable is the folder with ca.crt, kedge.crt and kedge.key for SQL, if it wants TLS.
	FilesVariable = "KEDGE_DATASTORE_FILES"
)

// started counts the datastores, for the names of databases.
var started atomic.Int64

// Start starts a datastore without contents, and stops it at the end of the test.
func Start(t testing.TB) *kubernetes.Client {
	t.Helper()
	// The path of a unix socket has at most 107 characters, and the names of some tests are longer.
	folder, err := os.MkdirTemp("", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	d, err := newDatastore(folder)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the datastore ended: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.FailNow()
	}
	client := d.Endpoint().NewClient()
	t.Cleanup(func() { client.Close() })
	return client
}

// newDatastore returns a datastore that has its files in folder.
func newDatastore(folder string) (datastore.Datastore, error) {
	socket := filepath.Join(folder, "socket")
	switch kind := os.Getenv(KindVariable); kind {
	case "SQLite":
		return sqlite.New(sqlite.Config{Dir: folder, Socket: socket}), nil
	case "SQL":
		var files datastore.TLS
		if folder := os.Getenv(FilesVariable); folder != "" {
			files = datastore.TLS{
				CAFile: filepath.Join(folder, "ca.crt"), CertFile: filepath.Join(folder, "kedge.crt"), KeyFile: filepath.Join(folder, "kedge.key"),
			}
		}
		return sqldb.New(sqldb.Config{Endpoint: fmt.Sprint(os.Getenv(EndpointVariable), os.Getpid(), "_", started.Add(1)), TLS: files, Socket: socket})
	case "etcd":
		return newMember(datadir.Dir(folder), socket)
	default:
		return nil, fmt.Errorf("%s is %q: it is one of SQLite, SQL and etcd", KindVariable, kind)
	}
}

// newMember returns the only member of an etcd.
func newMember(dir datadir.Dir, socket string) (datastore.Datastore, error) {
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	const node, address = "node", "127.0.0.1"
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir: dir, NodeName: node, NodeIPs: []netip.Addr{netip.MustParseAddr(address)}, ClusterDomain: "cluster.local", Etcd: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	return etcd.New(etcd.Config{Dir: dir.Etcd(), Node: node, Address: address, Files: certificates.Etcd, Socket: socket}), nil
}
