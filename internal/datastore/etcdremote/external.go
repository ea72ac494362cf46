// Package etcdremote is a datastore in an etcd outside of this process: the user's
// own, or that of the cluster's other servers. The API server uses it through
// upstream's own client. This package waits until etcd answers. Package choice
// makes it.
package etcdremote

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/datastore"
)

const (
	// askTimeout limits how long an answer may take. retry is the pause after a
	// failed attempt.
	askTimeout = 5 * time.Second
	retry      = time.Second
	// repeatLog is the least time between two log lines about the same fault.
	repeatLog = time.Minute
)

// Config describes an etcd.
type Config struct {
	// Endpoints are etcd's URLs, separated by commas.
	Endpoints string
	Files     datastore.TLS
	// Dial connects to one of etcd's members and ignores the address. If it is
	// nil, the client dials the address.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// What names this etcd in messages. Advice says what the user has to check if
	// it does not answer.
	What, Advice string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	cfg Config
	// client is nil until Run.
	client atomic.Pointer[clientv3.Client]
}

// New returns the datastore. It fails if the TLS files cannot be used. It
// connects to nothing.
func New(cfg Config) (*Datastore, error) {
	if _, err := cfg.Files.Config(); err != nil {
		return nil, err
	}
	return &Datastore{cfg: cfg}, nil
}

// Name implements component.Component.
func (d *Datastore) Name() string { return "datastore" }

// Endpoint implements datastore.Datastore.
func (d *Datastore) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{
		URL: d.cfg.Endpoints, CAFile: d.cfg.Files.CAFile, CertFile: d.cfg.Files.CertFile, KeyFile: d.cfg.Files.KeyFile,
		Dial: d.cfg.Dial, Shared: true,
	}
}

// Run implements component.Component. It is ready once etcd answers, and then
// does nothing more: the API server itself reports failed writes.
func (d *Datastore) Run(ctx context.Context, ready func()) error {
	log := logrus.WithField("component", d.Name())
	client, err := datastore.NewClient(d.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	d.client.Store(client)
	var said time.Time
	err = wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		err := ask(ctx, client)
		if err != nil && ctx.Err() == nil && time.Since(said) >= repeatLog {
			said = time.Now()
			log.Warnf("%v. Trying again", d.explain(err))
		}
		return err == nil, nil
	})
	if err == nil {
		log.Infof("Using %s", d.cfg.What)
		ready()
		<-ctx.Done()
	}
	return nil
}

// explain adds to err what the user has to check.
func (d *Datastore) explain(err error) error {
	return fmt.Errorf("%s does not answer: check %s: %w", d.cfg.What, d.cfg.Advice, err)
}

// ask returns nil if etcd has a leader: without one it cannot answer this
// request.
func ask(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := client.Get(ctx, "health")
	return err
}
