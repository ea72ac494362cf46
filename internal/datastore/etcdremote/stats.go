package etcdremote

import (
	"context"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// Stats implements datastore.Datastore. etcd's own metrics show what etcd does,
// and the API server's show how long it waited (etcd_request_duration_seconds).
func (d *Datastore) Stats(context.Context) datastore.Stats {
	return datastore.Stats{Kind: "external-etcd", Place: d.cfg.What}
}

// Health implements datastore.Datastore. It asks each endpoint for its status.
func (d *Datastore) Health(ctx context.Context) (health datastore.Health) {
	client := d.client.Load()
	if client == nil {
		return health
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout/2)
	defer cancel()
	endpoints := strings.Split(d.cfg.Endpoints, ",")
	answers := make([]*clientv3.StatusResponse, len(endpoints))
	var fault error
	var asked sync.WaitGroup
	asked.Go(func() { fault = ask(ctx, client) })
	for i, endpoint := range endpoints {
		asked.Go(func() { answers[i], _ = client.Status(ctx, endpoint) })
	}
	asked.Wait()
	if fault != nil {
		health.Fault = d.explain(fault).Error()
	}
	etcd := &datastore.Etcd{}
	for i, answer := range answers {
		member := datastore.EtcdMember{Name: endpoints[i]}
		if answer != nil {
			member.Answers, member.Learner = true, answer.IsLearner
			member.Leader = answer.Leader == answer.Header.MemberId
			etcd.Term = max(etcd.Term, answer.RaftTerm)
			etcd.Committed, etcd.Applied = max(etcd.Committed, answer.RaftIndex), max(etcd.Applied, answer.RaftAppliedIndex)
		}
		etcd.Members = append(etcd.Members, member)
	}
	health.Etcd = etcd
	return health
}
