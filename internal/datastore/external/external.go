// Package external is a datastore in an etcd of the user's own. The API server
// talks to it by upstream's own client; what is here waits for it. The server
// package makes it of --datastore-endpoint.
package external

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

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

// Datastore is a datastore.Datastore.
type Datastore struct {
	endpoints string
	files     datastore.TLS
	tls       *tls.Config
	// client is nil until Run.
	client atomic.Pointer[clientv3.Client]
}

// New returns the datastore at endpoints, which have commas between them, or
// what is wrong with the files. It connects to nothing.
func New(endpoints string, files datastore.TLS) (*Datastore, error) {
	config, err := files.Config()
	if err != nil {
		return nil, err
	}
	return &Datastore{endpoints: endpoints, files: files, tls: config}, nil
}

// Name implements component.Component.
func (d *Datastore) Name() string { return "datastore" }

// Endpoint implements datastore.Datastore.
func (d *Datastore) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{
		URL: d.endpoints, CAFile: d.files.CAFile, CertFile: d.files.CertFile, KeyFile: d.files.KeyFile, Shared: true,
	}
}

// Run implements component.Component. It is ready once etcd answers, and then
// does nothing more: the API server says what it cannot write.
func (d *Datastore) Run(ctx context.Context, ready func()) error {
	log := logrus.WithField("component", d.Name())
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(d.endpoints, ","), TLS: d.tls, DialTimeout: askTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return fmt.Errorf("make etcd client: %w", err)
	}
	defer client.Close()
	d.client.Store(client)
	var said time.Time
	for ctx.Err() == nil {
		err := ask(ctx, client)
		if err == nil {
			log.Infof("Using etcd at %s", d.endpoints)
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
	return fmt.Errorf("etcd at %s does not answer: check whether it runs and has a leader (`etcdctl endpoint status`), "+
		"the hosts and ports in datastore-endpoint, and for TLS datastore-cafile, datastore-certfile and datastore-keyfile: %w", d.endpoints, err)
}

// ask asks for something that etcd can only tell while it has a leader.
func ask(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := client.Get(ctx, "health")
	return err
}
