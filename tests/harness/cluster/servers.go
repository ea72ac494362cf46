package cluster

import (
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// Gather starts a cluster with embedded etcd, which has a server on each host. The first host's server
// founds it.
func Gather(t *testing.T, hosts ...*harness.Host) []*harness.Server {
	t.Helper()
	servers := []*harness.Server{hosts[0].StartServer(t, "--cluster-init")}
	servers[0].WaitReady()
	for _, host := range hosts[1:] {
		servers = append(servers, host.StartServer(t, Joining(servers[0])...))
	}
	for _, server := range servers[1:] {
		server.WaitReady()
	}
	return servers
}

// Joining returns the arguments of a server that joins the cluster of another.
func Joining(server *harness.Server) []string {
	return []string{"--server=https://" + server.Host.Address.String() + ":6443", "--token=" + server.Token()}
}
