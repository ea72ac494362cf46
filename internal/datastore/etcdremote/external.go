// Package etcdremote is a datastore in an etcd elsewhere: of the user's own, or of
// the cluster's servers that have it. The API server talks to it by upstream's own
// client; what is here waits for it. The server package makes it.
package etcdremote

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/datastore"
)

const (
	// askTimeout is how long an answer may take, and retry how long after a
	// failed try the next one comes.
	askTimeout = 5 * time.Second
	retry      = time.Second
	// repeatLog is after how long the same fault is logged again.
	repeatLog = time.Minute
)

// Config is what is to be known of an etcd.
type Config struct {
	// Endpoints have commas between them.
	Endpoints string
	Files     datastore.TLS
	// Dial connects to one of its members, whatever the address; nil dials that.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// What it is called in messages, and Advice is what the user is to check if it
	// does not answer.
	What, Advice string
}

// Datastore is a datastore.Datastore.
type Datastore struct {
	cfg Config
	// client is nil until Run.
	client atomic.Pointer[clientv3.Client]
}

// New returns the datastore, or what is wrong with the files. It connects to
// nothing.
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
// does nothing more: the API server says what it cannot write.
func (d *Datastore) Run(ctx context.Context, ready func()) error {
	log := logrus.WithField("component", d.Name())
	client, err := datastore.NewClient(d.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	d.client.Store(client)
	var said time.Time
	for ctx.Err() == nil {
		err := ask(ctx, client)
		if err == nil {
			log.Infof("Using %s", d.cfg.What)
			ready()
			<-ctx.Done()
			return nil
		}
		if ctx.Err() == nil && time.Since(said) >= repeatLog {
			said = time.Now()
			log.Warnf("%v. It is tried again and again", d.explain(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// explain says what to do about an etcd that does not answer.
func (d *Datastore) explain(err error) error {
	return fmt.Errorf("%s does not answer: check %s: %w", d.cfg.What, d.cfg.Advice, err)
}

// ask asks for something that etcd can only tell while it has a leader.
func ask(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := client.Get(ctx, "health")
	return err
}
