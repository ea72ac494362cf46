package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// admitPatience limits how long etcd may take to change the list of members. A
// server that joins gives up after ten seconds.
const admitPatience = 5 * time.Second

// Admit adds the member of another server to the cluster, as a learner. Its
// errors are shown to that server's user. Errors that pass by themselves are
// join.ErrNotNow.
func (m *Member) Admit(ctx context.Context, request join.MemberRequest) (join.MemberResponse, error) {
	server := m.server.Load()
	if server == nil || server.IsLearner() {
		return join.MemberResponse{}, join.NotNow("it has not yet joined its cluster itself")
	}
	m.admitting.Lock()
	defer m.admitting.Unlock()
	ctx, cancel := context.WithTimeout(ctx, admitPatience)
	defer cancel()
	client := m.newClient(server).Client
	defer client.Close()
	// This server's own list of members may be old. The list that a quorum
	// confirms is not.
	if _, err := client.MemberList(ctx); err != nil {
		return join.MemberResponse{}, join.NotNow(m.quorumLost(context.WithoutCancel(ctx), server))
	}
	members := membersOf(server.Cluster().Members())
	switch add, err := admit(members, request); {
	case err != nil:
		return join.MemberResponse{}, err
	case add:
		added, err := client.MemberAddAsLearner(ctx, []string{request.PeerURL})
		if err != nil {
			return join.MemberResponse{}, join.NotNow("etcd cannot add a member now: " + err.Error())
		}
		members = append(members, member{id: added.Member.ID, url: request.PeerURL, learner: true})
		m.log.Infof("Server %s joins etcd from %s", request.Name, request.PeerURL)
		if down := silent(members[:len(members)-1], m.peers.alive(ctx, members)); len(down) > 0 {
			m.log.Warnf("A server joins while these members are down: %s. If they are gone for good, run `kubectl delete node` for their nodes: until then they count for the quorum",
				strings.Join(down, ", "))
		}
	}
	return join.MemberResponse{InitialCluster: initialCluster(members, request)}, nil
}

// membersOf converts etcd's list of members to the form that decisions use.
func membersOf(all []*membership.Member) []member {
	var members []member
	for _, one := range all {
		found := member{id: uint64(one.ID), name: one.Name, learner: one.IsLearner}
		if len(one.PeerURLs) > 0 {
			found.url = one.PeerURLs[0]
		}
		members = append(members, found)
	}
	return members
}

// announce tells the cluster this member's address if it has changed.
func (m *Member) announce(ctx context.Context, client *clientv3.Client, server *etcdserver.EtcdServer) error {
	self := server.Cluster().Member(server.MemberID())
	if self == nil || len(self.PeerURLs) == 1 && self.PeerURLs[0] == m.peerURL() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, admitPatience)
	defer cancel()
	if _, err := client.MemberUpdate(ctx, uint64(self.ID), []string{m.peerURL()}); err != nil {
		return fmt.Errorf("tell the other servers the new address %s of this server: %w", m.peerURL(), err)
	}
	m.log.Infof("Told the other servers the new address %s of this server", m.peerURL())
	return nil
}
