package etcd

import (
	"net/http"
	"net/url"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
)

// newRemote returns etcd's own gRPC server without a listener.
func newRemote(server *etcdserver.EtcdServer) *grpc.Server { return v3rpc.Server(server, nil, nil) }

// ServeHTTP answers calls of etcd's API, as gRPC over HTTP/2. The caller has to
// check whether the client may call.
func (m *Member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	remote := m.remote.Load()
	if remote == nil {
		http.Error(w, "etcd is starting", http.StatusServiceUnavailable)
		return
	}
	remote.ServeHTTP(w, r)
}

// Members returns the HOST:PORT of all members with a vote, where servers without
// etcd reach them. usable is true if this member knows a leader.
func (m *Member) Members() (addresses []string, usable bool) {
	server := m.server.Load()
	if server == nil || m.remote.Load() == nil {
		return nil, false
	}
	for _, one := range server.Cluster().Members() {
		if one.IsLearner {
			continue
		}
		for _, text := range one.ClientURLs {
			if u, err := url.Parse(text); err == nil {
				addresses = append(addresses, u.Host)
			}
		}
	}
	return addresses, server.Leader() != 0
}
