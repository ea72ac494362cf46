// Package remoteapi is the API for processes that run no API server: Clients and Objects
// for agents, and Elsewhere for servers with disable-apiserver. The boot lists make them.
package remoteapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
)

const (
	// apiLeases is where API servers that share a datastore keep a lease each, under
	// their address (pkg/controlplane/instance.go, NewLeases).
	//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/instance.go Config.createLeaseReconciler
	apiLeases = "/registry/masterleases/"
	// retry is how often another server is looked for, and apiReminder how often is
	// said that there is none with an API.
	retry       = time.Second
	apiReminder = time.Minute
	// reconnectInterval is how old a connection gets: the certificate that was made
	// for it lasts for a year.
	reconnectInterval = 30 * 24 * time.Hour
)

// Elsewhere is the API of other servers, for the parts of a server that has none.
type Elsewhere struct {
	*Clients
	objects *Objects
	servers *serverlb.Balancer
	follow  component.Component
	// url is this server's, for those who have yet to join.
	url string
	log *logrus.Entry
}

// Config is what Elsewhere has to know.
type Config struct {
	NodeName string
	// File keeps the addresses of servers over a restart.
	File string
	// URL is this server's, for servers that have yet to join.
	URL string
	// Port is where all servers listen.
	Port int
	// TLS returns what a user shows, and NodeTLS what this server's node shows.
	TLS     func(user string, groups ...string) *tls.Config
	NodeTLS *tls.Config
	// Etcd connects to the datastore, in which API servers have their leases.
	Etcd func() (*clientv3.Client, error)
}

// NewElsewhere makes the component, which finds the servers by what they write into
// the datastore.
func NewElsewhere(cfg Config) *Elsewhere {
	r := &Elsewhere{
		servers: serverlb.New(serverlb.Config{NodeName: cfg.NodeName, File: cfg.File}),
		url:     cfg.URL,
		log:     logrus.WithField("component", "api"),
	}
	r.Clients = NewClients(r.servers, cfg.TLS)
	r.objects = NewObjects(r.Clients, cfg.NodeName)
	r.follow = r.servers.Follow(serverlb.FollowConfig{
		Source: func(ctx context.Context, learn func([]string)) error {
			return followLeases(ctx, cfg.Etcd, cfg.Port, learn)
		},
		Path: serverlb.ReadyPath,
		TLS:  cfg.NodeTLS,
	})
	return r
}

// Name implements component.Component.
func (*Elsewhere) Name() string { return "api" }

// Run implements component.Component. It is ready once a server's API is.
func (r *Elsewhere) Run(ctx context.Context, ready func()) error {
	group := component.Group{OnReady: ready}
	group.Add(r.follow)
	reached := component.Step("reach", r.await)
	group.Add(reached)
	group.Add(r.objects, reached)
	group.Add(component.Func("reconnect", func(ctx context.Context, ready func()) error {
		ready()
		tick := time.NewTicker(reconnectInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				r.Reconnect()
			}
		}
	}))
	return group.Run(ctx)
}

// await waits until an API answers.
func (r *Elsewhere) await(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(r.ClientConfig("system:kedge:supervisor"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var said time.Time
	return wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.Discovery().RESTClient().Get().AbsPath(serverlb.ReadyPath).MaxRetries(0).DoRaw(asking)
		cancel()
		if err == nil || ctx.Err() != nil {
			return true, ctx.Err()
		}
		if time.Since(said) > apiReminder {
			said = time.Now()
			r.log.Infof("This server runs no API server, and its node waits for one that does: kedge server --disable-etcd --server %s, with this one's token (%v)", r.url, err)
		}
		return false, nil
	})
}

// Informers is an objectcache.Source.
func (r *Elsewhere) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	return r.objects.Informers(ctx)
}

// Certificate returns nil: an API server alone has certificates of the user's own.
func (*Elsewhere) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }

// Servers implements tunnel.Servers: the servers that have an API.
func (r *Elsewhere) Servers() ([]string, <-chan struct{}) { return r.servers.Servers() }

// ServeHTTP refuses what is not the supervisor's, /readyz too: clients are to use
// another server.
func (r *Elsewhere) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	servers, _ := r.servers.Servers()
	http.Error(w, fmt.Sprintf("this server runs no API server (disable-apiserver); those that do are at %v", servers), http.StatusServiceUnavailable)
}

// followLeases is an serverlb.FollowConfig.Source: the API servers that have a lease.
func followLeases(ctx context.Context, connect func() (*clientv3.Client, error), port int, learn func([]string)) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		// What this server has will do: without the others it is of little use anyway.
		answer, err := client.Get(ctx, apiLeases, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSerializable())
		if err == nil {
			var servers []string
			for _, kv := range answer.Kvs {
				servers = append(servers, net.JoinHostPort(path.Base(string(kv.Key)), strconv.Itoa(port)))
			}
			learn(servers)
			watching, cancel := context.WithCancel(ctx)
			<-client.Watch(watching, apiLeases, clientv3.WithPrefix(), clientv3.WithRev(answer.Header.Revision+1))
			cancel()
		}
	}, retry)
	return nil
}
