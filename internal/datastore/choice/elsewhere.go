package choice

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcdremote"
)

// retry is the pause between two attempts to reach another server.
const retry = time.Second

// useOtherMembers makes the datastore of a server without etcd. It uses the etcd
// members of the other servers, through their port 6443. file remembers them.
func (s *Store) useOtherMembers(server, file, nodeName string, certificates *pki.Server) error {
	servers := serverlb.New(serverlb.Config{Server: server, NodeName: nodeName, File: file})
	store, err := etcdremote.New(etcdremote.Config{
		Endpoints: "https://" + pki.APIName + ":6443",
		Files: datastore.TLS{
			CAFile: certificates.ServerCAFile, CertFile: certificates.Etcd.ClientCertFile, KeyFile: certificates.Etcd.ClientKeyFile,
		},
		Dial:   untilReached(servers.DialContext),
		What:   "the etcd of the cluster's other servers",
		Advice: "that more than half of the servers with etcd are running",
	})
	if err != nil {
		return err
	}
	s.Datastore, s.Etcd = store, etcdElsewhere{servers}
	s.follow = servers.Follow(serverlb.FollowConfig{Path: join.EtcdPath, TLS: certificates.EtcdClientTLS()})
	return nil
}

// untilReached dials repeatedly until ctx ends. Without it, gRPC would wait for up to
// two minutes after a failed dial.
func untilReached(dial join.Dial) join.Dial {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		_ = wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
			conn, err = dial(ctx, network, address)
			return err == nil, nil
		})
		return conn, err
	}
}

// etcdElsewhere answers other servers' questions about etcd on a server without
// etcd.
type etcdElsewhere struct{ servers *serverlb.Balancer }

// Admit implements supervisor.Etcd.
func (e etcdElsewhere) Admit(context.Context, join.MemberRequest) (join.MemberResponse, error) {
	addresses, _ := e.Members()
	return join.MemberResponse{}, fmt.Errorf("this server runs no etcd (disable-etcd): set --server to one of %v", addresses)
}

// Members implements supervisor.Etcd.
func (e etcdElsewhere) Members() ([]string, bool) {
	addresses, _ := e.servers.Servers()
	return addresses, false
}

// ServeHTTP implements supervisor.Etcd.
func (etcdElsewhere) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
