package etcd

import (
	"context"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// tidyInterval is how often a member checks the list of members.
	tidyInterval = 15 * time.Second
	// learnerPatience is how long a learner may be silent before it is removed.
	// It keeps others from joining.
	learnerPatience = 5 * time.Minute
	// leaderPatience is how long the other members leave it to the leader to
	// remove a member. The leader may have missed the deletion of the node, or
	// may itself be that member.
	leaderPatience = time.Minute
)

// NodeDeleted has the members of a deleted node removed. Every server calls it,
// and the leader removes them if it can. NodeAdded cancels that. A member that
// the node gets later is another one. Both may be called only while the member is
// ready.
func (m *Member) NodeDeleted(node string) {
	m.mu.Lock()
	for _, one := range m.of(node) {
		m.deleted[one.id] = time.Now()
	}
	m.mu.Unlock()
	m.poked.Notify()
}

// NodeAdded says that a node exists. It cancels NodeDeleted.
func (m *Member) NodeAdded(node string) {
	m.mu.Lock()
	for _, one := range m.of(node) {
		delete(m.deleted, one.id)
	}
	m.mu.Unlock()
}

// of returns the members of a node.
func (m *Member) of(node string) []member {
	return slices.DeleteFunc(membersOf(m.server.Load().Cluster().Members()), func(one member) bool {
		return one.name == "" || nodeOf(one.name) != node
	})
}

// tidy keeps the list of members up to date until ctx ends.
func (m *Member) tidy(ctx context.Context, client *clientv3.Client) {
	tick := time.NewTicker(tidyInterval)
	defer tick.Stop()
	silentSince := map[uint64]time.Time{}
	for {
		server := m.server.Load()
		m.meter.Commits(syncsOf(m.syncs))
		if err := m.announce(ctx, client, server); err != nil && ctx.Err() == nil {
			m.log.Warn(err)
		}
		leads := server.Leader() == server.MemberID()
		m.removeDeleted(ctx, client, leads)
		if leads {
			m.removeLearners(ctx, client, silentSince)
		} else {
			clear(silentSince)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-m.poked:
		}
	}
}

// removeDeleted removes one member whose node was deleted. It never removes this
// member, and never a member without which the rest would have no quorum.
func (m *Member) removeDeleted(ctx context.Context, client *clientv3.Client, leads bool) {
	m.mu.Lock()
	deleted := maps.Clone(m.deleted)
	m.mu.Unlock()
	maps.DeleteFunc(deleted, func(_ uint64, since time.Time) bool { return !leads && time.Since(since) < leaderPatience })
	if len(deleted) == 0 {
		return
	}
	self := uint64(m.server.Load().MemberID())
	members := membersOf(m.server.Load().Cluster().Members())
	for _, one := range members {
		if _, gone := deleted[one.id]; !gone || one.id == self {
			continue
		}
		if err := canRemove(members, m.peers.alive(ctx, members), one); err != nil {
			m.log.Warnf("Node %s was deleted, but its etcd member stays for now: %v", one, err)
			continue
		}
		m.remove(ctx, client, one, "its node was deleted")
		return // the next call removes the others, by the new list of members
	}
}

// removeLearners removes learners that have been silent for long.
func (m *Member) removeLearners(ctx context.Context, client *clientv3.Client, silentSince map[uint64]time.Time) {
	var learners []member
	for _, one := range membersOf(m.server.Load().Cluster().Members()) {
		if one.learner {
			learners = append(learners, one)
		}
	}
	if len(learners) == 0 {
		clear(silentSince)
		return
	}
	alive := m.peers.alive(ctx, learners)
	for _, one := range learners {
		since, known := silentSince[one.id]
		switch {
		case alive[one.id]:
			delete(silentSince, one.id)
		case !known:
			silentSince[one.id] = time.Now()
		case time.Since(since) > learnerPatience:
			m.remove(ctx, client, one, "it began to join and never started")
		}
	}
}

func (m *Member) remove(ctx context.Context, client *clientv3.Client, gone member, why string) {
	ctx, cancel := context.WithTimeout(ctx, admitPatience)
	defer cancel()
	if _, err := client.MemberRemove(ctx, gone.id); err != nil {
		m.log.Warnf("Cannot remove the etcd member of %s: %v", gone, err)
		return
	}
	m.mu.Lock()
	delete(m.deleted, gone.id)
	m.mu.Unlock()
	m.log.Infof("Removed the etcd member of %s: %s", gone, why)
}
