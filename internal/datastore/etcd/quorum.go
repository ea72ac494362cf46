package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// noLeader is how long there must be no leader before a missing quorum is
// assumed: longer than two elections take.
const noLeader = 2*2*election + heartbeat

// outage knows whether too few members answer to read and write.
type outage struct {
	// lost is the message for users. It is nil while there is a leader.
	lost atomic.Pointer[string]
}

// fault returns the error that the API's users get if nothing can be read or
// written, or nil.
func (o *outage) fault() error {
	if text := o.lost.Load(); text != nil {
		return apierrors.NewServiceUnavailable(*text)
	}
	return nil
}

// watchQuorum logs when there is no leader for lack of members, and when there is
// one again, until ctx ends.
func (m *Member) watchQuorum(ctx context.Context, server *etcdserver.EtcdServer) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch {
		case server.Lead() != raft.None:
			since = time.Time{}
			if m.outage.lost.Swap(nil) != nil {
				m.log.Info("Enough of etcd's members answer again")
			}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > noLeader:
			text := m.quorumLost(ctx, server)
			if m.outage.lost.Swap(&text) == nil && ctx.Err() == nil {
				m.log.Warn(text)
			}
		}
	}
}

// quorumLost says how many of the members answer, and what to do if the others
// are lost for good.
func (m *Member) quorumLost(ctx context.Context, server *etcdserver.EtcdServer) string {
	members := membersOf(server.Cluster().Members())
	return lost(members, m.peers.alive(ctx, members))
}

func lost(members []member, alive map[uint64]bool) string {
	silent := silent(members, alive)
	all, needed := voters(members), quorum(voters(members))
	answer := all - len(silent)
	if answer >= needed {
		return fmt.Sprintf("Waiting for etcd's members to elect a leader: of %d members with a vote, %d answer and %d are needed. "+
			"If this lasts longer than a minute, look for a slow disk or a slow network on these servers", all, answer, needed)
	}
	return fmt.Sprintf("Waiting for etcd's members: of %d members with a vote, %d answer and %d are needed. No answer from %s. "+
		"If they are lost for good, run `kedge server --cluster-reset` on this server only",
		all, answer, needed, strings.Join(silent, ", "))
}
