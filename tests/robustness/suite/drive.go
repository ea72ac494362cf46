package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	// lastKey is written when the traffic has ended, and its request must succeed.
	lastKey = "tombstone"
	// patience limits how long the datastore may take to answer again after the last fault, and the
	// watches to have all events.
	patience = 2 * time.Minute
	// pause is the time between two attempts.
	pause = 100 * time.Millisecond
	// requestTimeout is longer than etcd's own tests have it, because the machine may be busy.
	requestTimeout = time.Second
	// compaction is the time between two compactions. The watches of all keys have this time to come
	// back after a fault: see history.gap.
	compaction = 2 * time.Second
)

// driver makes the traffic of a run, and records it.
type driver struct {
	endpoints []string
	traffic   traffic.Traffic
	rate      float64
	log       *zap.Logger
	// clients record the requests. watchers record one watch of all keys at each endpoint.
	clients, watchers *client.ClientSet
}

func newDriver(endpoints []string, kind traffic.Traffic, rate float64) *driver {
	ids, began := identity.NewIDProvider(), time.Now()
	traffic.RequestTimeout = requestTimeout
	return &driver{
		endpoints: endpoints, traffic: kind, rate: rate, log: zap.NewNop(),
		clients: client.NewSet(ids, began), watchers: client.NewSet(ids, began),
	}
}

// drive runs the traffic until whileRunning returns, and returns what was recorded.
func (d *driver) drive(ctx context.Context, whileRunning func() error) ([]report.ClientReport, error) {
	defer d.clients.Close()
	defer d.watchers.Close()
	if err := d.first(ctx); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	last, watched := make(chan int64, 1), make(chan error, 1)
	go func() {
		watched <- client.CollectClusterWatchEvents(watching, client.CollectClusterWatchEventsParam{
			Lg: d.log, Endpoints: d.endpoints, MaxRevisionChan: last, ClientSet: d.watchers,
		})
	}()
	finish := make(chan struct{})
	var running sync.WaitGroup
	if err := d.start(ctx, &running, finish); err != nil {
		return nil, err
	}
	err := whileRunning()
	close(finish)
	running.Wait()
	if err != nil {
		return nil, err
	}
	if err := d.last(ctx); err != nil {
		return nil, err
	}
	reports := d.clients.Reports()
	last <- report.OperationsMaxRevision(reports)
	select {
	case err = <-watched:
	case <-time.After(patience):
		stop()
		<-watched // it has all that it will have
	}
	return slices.Concat(reports, d.watchers.Reports()), err
}

// first reads from the empty datastore, which tells the revision from which the history begins.
func (d *driver) first(ctx context.Context) error {
	c, err := d.clients.NewClient(d.endpoints)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer c.Close()
	return d.eventually(ctx, func(ctx context.Context) error {
		_, err := c.Get(ctx, lastKey)
		return err
	})
}

// last writes lastKey once the datastore answers.
func (d *driver) last(ctx context.Context) error {
	c, err := d.clients.NewClient(d.endpoints)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer c.Close()
	attempt := 0
	return d.eventually(ctx, func(ctx context.Context) error {
		if _, err := c.Get(ctx, lastKey); err != nil {
			return err
		}
		attempt++
		_, err := c.Put(ctx, lastKey, fmt.Sprint(attempt))
		return err
	})
}

// eventually repeats a request until it succeeds.
func (d *driver) eventually(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, 10*requestTimeout)
		err := request(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the datastore to answer: %w", err)
		case <-time.After(pause):
		}
	}
}

// start starts the clients: some with one endpoint each, and some with all endpoints.
func (d *driver) start(ctx context.Context, running *sync.WaitGroup, finish <-chan struct{}) error {
	limit := rate.NewLimiter(rate.Limit(d.rate), int(d.rate))
	keys, storage := traffic.NewKeyStore(10, "key"), traffic.NewKubernetesStorage()
	err := traffic.SimulateKeyValueTraffic(ctx, running, &traffic.KeyValue{
		MaximalQPS: d.rate, MemberClientCount: 6, ClusterClientCount: 2,
	}, d.endpoints, d.clients, d.traffic, traffic.RunTrafficLoopParam{
		QPSLimiter: limit, IDs: d.clients.IdentityProvider(), LeaseIDStorage: identity.NewLeaseIDStorage(),
		NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(3), KeyStore: keys, Storage: storage, Finish: finish,
	})
	if err != nil {
		return fmt.Errorf("start requests: %w", err)
	}
	watch := traffic.Watch{MemberClientCount: 4, ClusterClientCount: 2, RevisionOffsetRange: traffic.Range{Min: -100, Max: 100}}
	err = traffic.SimulateWatchTraffic(ctx, running, &watch, d.endpoints, d.clients, d.traffic, traffic.RunWatchLoopParam{
		Config: watch, QPSLimiter: limit, KeyStore: keys, Storage: storage, Finish: finish, Logger: d.log,
	})
	if err != nil {
		return fmt.Errorf("start watches: %w", err)
	}
	err = traffic.SimulateCompactionTraffic(ctx, running, &traffic.Compaction{Period: compaction}, d.endpoints, d.clients, d.traffic,
		traffic.RunCompactLoopParam{Period: compaction, Finish: finish})
	if err != nil {
		return fmt.Errorf("start compactions: %w", err)
	}
	return nil
}
