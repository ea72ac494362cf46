// Follows go.etcd.io/etcd/server/v3 v3.7.3, etcdserver/api/v3rpc/maintenance.go.

package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Save implements datastore.Snapshotter. It does the same as etcd's maintenance
// service for etcdctl (server/v3/etcdserver/api/v3rpc/maintenance.go). Without a
// connection that service does not tell where a snapshot ends.
//
//upstream:follows go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc/maintenance.go maintenanceServer.Snapshot
func (m *Member) Save(ctx context.Context, file string) (revision int64, err error) {
	server := m.server.Load()
	client := m.newClient(server).Client
	defer client.Close()
	// Once this member has answered a read, it has everything that the others
	// acknowledged.
	if _, err := client.Get(ctx, "/", clientv3.WithCountOnly()); err != nil {
		return 0, fmt.Errorf("catch up with etcd's other members: %w", err)
	}
	snapshot := server.Backend().Snapshot()
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	target, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		sum := sha256.New()
		if _, err = snapshot.WriteTo(io.MultiWriter(target, sum)); err == nil {
			_, err = target.Write(sum.Sum(nil))
		}
		err = errors.Join(err, target.Close())
	}
	if err != nil {
		return 0, fmt.Errorf("copy etcd's database: %w", datadir.Explain(err))
	}
	return lastRevision(file)
}
