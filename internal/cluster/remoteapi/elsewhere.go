// Package remoteapi reaches the API from processes that run no API server: Clients and
// Objects for agents, and Elsewhere for servers with disable-apiserver. The boot lists in
// packages agent and server make them.
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
	// apiLeases is the prefix under which API servers that share a datastore keep a lease
	// each, by their addresses (pkg/controlplane/instance.go, NewLeases).
	//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/instance.go Config.createLeaseReconciler
	apiLeases = "/registry/masterleases/"
	// retry is how often Elsewhere looks for another server. apiReminder is how often it
	// logs that no server with an API is known.
	retry       = time.Second
	apiReminder = time.Minute
	// reconnectInterval is how long connections are kept. The certificate that is made
	// for a connection is valid for a year.
	reconnectInterval = 30 * 24 * time.Hour
)

// Elsewhere is the API on other servers, for the parts of a server that runs no API
// server.
type Elsewhere struct {
	*Clients
	objects *Objects
	servers *serverlb.Balancer
	follow  component.Component
	// url is this server's URL, for messages to users who add another server.
	url string
	log *logrus.Entry
}

// Config is what Elsewhere has to know.
type Config struct {
	NodeName string
	// File keeps the addresses of servers over a restart.
	File string
	// URL is this server's URL, for messages to users who add another server.
	URL string
	// Port is the port at which all servers listen.
	Port int
	// TLS returns the settings with a user's certificate. NodeTLS has that of this
	// server's node.
	TLS     func(user string, groups ...string) *tls.Config
	NodeTLS *tls.Config
	// Etcd connects to the datastore, where API servers keep their leases.
	Etcd func() (*clientv3.Client, error)
}

// NewElsewhere makes the component. It finds the servers by the leases that they keep in
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

// Run implements component.Component. It is ready once the API of a server is.
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

// await waits until a server's API answers.
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
			r.log.Infof("This server runs no API server, and its node waits for a server that does. Start one with `kedge server --disable-etcd --server %s` and this server's token (%v)", r.url, err)
		}
		return false, nil
	})
}

// Informers implements objectcache.Source.
func (r *Elsewhere) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	return r.objects.Informers(ctx)
}

// Certificate returns nil: only API servers have certificates that the user brought.
func (*Elsewhere) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }

// Servers implements tunnel.Servers. It returns the servers that have an API.
func (r *Elsewhere) Servers() ([]string, <-chan struct{}) { return r.servers.Servers() }

// ServeHTTP refuses every request that is not for the supervisor, /readyz too, so that
// clients use another server.
func (r *Elsewhere) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	servers, _ := r.servers.Servers()
	http.Error(w, fmt.Sprintf("this server runs no API server (disable-apiserver): use one of %v", servers), http.StatusServiceUnavailable)
}

// followLeases is a serverlb.FollowConfig.Source. It learns the API servers that have a
// lease.
func followLeases(ctx context.Context, connect func() (*clientv3.Client, error), port int, learn func([]string)) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		// The local member's data are enough: without the other members it is of little
		// use anyway.
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
