package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// Stats implements datastore.Datastore.
func (m *Member) Stats(context.Context) datastore.Stats {
	stats := datastore.Stats{Kind: "etcd", Place: m.cfg.Dir, Disk: datastore.DiskOf(m.cfg.Dir)}
	server := m.server.Load()
	if server == nil {
		return stats
	}
	stats.Size, stats.Used = server.Backend().Size(), server.Backend().SizeInUse()
	m.meter.Commits(syncsOf(m.syncs))
	m.meter.Add(&stats)
	return stats
}

// Health implements datastore.Datastore. It asks the other members whether they
// run.
func (m *Member) Health(ctx context.Context) (health datastore.Health) {
	server := m.server.Load()
	if server == nil {
		if m.cfg.Join != nil && !Exists(m.cfg.Dir) {
			health.Fault = "Waiting for the other servers to admit this server's etcd member"
		}
		return health
	}
	members := membersOf(server.Cluster().Members())
	alive := m.peers.alive(ctx, members)
	health.Etcd = &datastore.Etcd{
		Term: server.Term(), Committed: server.CommittedIndex(), Applied: server.AppliedIndex(), Quorum: quorum(voters(members)),
	}
	for _, one := range members {
		health.Etcd.Members = append(health.Etcd.Members, datastore.EtcdMember{
			Name: one.String(), Leader: one.id == server.Lead(), Learner: one.learner, Answers: alive[one.id],
		})
	}
	switch {
	case server.Lead() == 0:
		health.Fault = lost(members, alive)
	case server.IsLearner():
		health.Fault = "Catching up with the other servers: this server's etcd member has no vote yet"
	}
	return health
}

// registeredSyncs returns etcd's own histogram of how long syncs of its log take.
// etcd does not export it. But registering the same histogram again fails with an
// error that contains the existing one (server/storage/wal/metrics.go).
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/wal/metrics.go walFsyncSec
func registeredSyncs() prometheus.Metric {
	again := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "etcd_disk_wal_fsync_duration_seconds", Help: "The latency distributions of fsync called by WAL.",
	})
	var known prometheus.AlreadyRegisteredError
	if errors.As(prometheus.Register(again), &known) {
		if metric, ok := known.ExistingCollector.(prometheus.Metric); ok {
			return metric
		}
	}
	return again
}

// syncsOf converts a histogram. Its bounds must be those of datastore.Histogram.
func syncsOf(from prometheus.Metric) (found datastore.Histogram) {
	var read dto.Metric
	if from.Write(&read) != nil {
		return found
	}
	var below uint64
	for i, bucket := range read.Histogram.GetBucket() {
		if i < len(found.Counts) {
			found.Counts[i] = bucket.GetCumulativeCount() - below
			below = bucket.GetCumulativeCount()
		}
	}
	found.Counts[len(found.Counts)-1] = read.Histogram.GetSampleCount() - below
	found.Sum = time.Duration(read.Histogram.GetSampleSum() * float64(time.Second))
	return found
}
