package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defragmentInterval = 10 * time.Minute
	// defragmentSize is the size in bytes below which defragmenting is not worth
	// it.
	defragmentSize = 64 << 20
	// defragmentKey is held by the member that is defragmenting. It is outside of
	// the API server's keys.
	defragmentKey = "/kedge/defragmenting"
	// defragmentPatience is how long defragmenting may take, in seconds, before
	// another member may begin.
	defragmentPatience = 120
)

// defragment gives space that compaction has freed back to the disk, until ctx
// ends. A member answers nothing while it defragments. So only one member does it
// at a time, and none while another member is down.
func (m *Member) defragment(ctx context.Context, client *clientv3.Client) {
	tick := time.NewTicker(defragmentInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		backend := m.server.Load().Backend()
		if !worthwhile(backend.Size(), backend.SizeInUse()) {
			continue
		}
		if err := m.defragmentAlone(ctx, client); err != nil && ctx.Err() == nil {
			m.log.Warnf("Cannot defragment etcd's database: %v", err)
		}
	}
}

// worthwhile tells whether much of a database is free.
func worthwhile(size, used int64) bool { return size > defragmentSize && size-used > size/2 }

func (m *Member) defragmentAlone(ctx context.Context, client *clientv3.Client) error {
	server := m.server.Load()
	members := membersOf(server.Cluster().Members())
	if len(silent(members, m.peers.alive(ctx, members))) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, defragmentPatience*time.Second)
	defer cancel()
	lease, err := client.Grant(ctx, defragmentPatience)
	if err != nil {
		return err
	}
	defer func() { _, _ = client.Revoke(context.WithoutCancel(ctx), lease.ID) }()
	taken, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(defragmentKey), "=", 0)).
		Then(clientv3.OpPut(defragmentKey, server.MemberID().String(), clientv3.WithLease(lease.ID))).
		Commit()
	if err != nil || !taken.Succeeded {
		return err
	}
	before, began := server.Backend().Size(), time.Now()
	if err := server.Backend().Defrag(); err != nil {
		return err
	}
	m.log.Infof("Defragmented etcd's database in %s: it has %d MB now, and had %d MB", time.Since(began).Round(time.Millisecond),
		server.Backend().Size()>>20, before>>20)
	return nil
}
