package server

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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcdremote"
)

// What a server leaves to others, by the flags that begin with disable.

const (
	// apiLeases is where API servers that share a datastore keep a lease each, under
	// their address (pkg/controlplane/instance.go, NewLeases).
	apiLeases = "/registry/masterleases/"
	// retry is how often another server is looked for, and apiReminder how often is
	// said that there is none with an API.
	retry       = time.Second
	apiReminder = time.Minute
	// reconnectInterval is how old a connection gets: the certificate that was made
	// for it lasts for a year.
	reconnectInterval = 30 * 24 * time.Hour
)

// remoteAPI is the API of other servers, for the parts of one that has none. It
// implements api.
type remoteAPI struct {
	*agent.Remote
	objects *agent.Objects
	servers *serverlb.Balancer
	follow  component.Component
	// url is this server's, for those who have yet to join.
	url string
	log *logrus.Entry
}

// newRemoteAPI finds the servers by what they write into this one's etcd. All have
// the port that this one has, as far as is known from that.
func newRemoteAPI(cfg *config.Config, node host.Node, certificates *pki.Server, store datastore.Datastore) *remoteAPI {
	r := &remoteAPI{
		servers: serverlb.New(serverlb.Config{NodeName: node.Name, File: datadir.Dir(cfg.DataDir).Servers()}),
		url:     "https://" + publicAddress(cfg.Server, node),
		log:     logrus.WithField("component", "api"),
	}
	r.Remote = agent.NewRemote(r.servers, certificates.UserTLS)
	r.objects = agent.NewObjects(r.Remote, node.Name)
	r.follow = r.servers.Follow(serverlb.FollowConfig{
		Source: func(ctx context.Context, learn func([]string)) error {
			return followLeases(ctx, store, cfg.Server.HTTPSListenPort, learn)
		},
		Path: serverlb.ReadyPath,
		TLS:  certificates.NodeTLS(),
	})
	return r
}

// Name implements component.Component.
func (*remoteAPI) Name() string { return "api" }

// Run implements component.Component. It is ready once a server's API is.
func (r *remoteAPI) Run(ctx context.Context, ready func()) error {
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
func (r *remoteAPI) await(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(r.ClientConfig("system:kedge:supervisor"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var said time.Time
	for {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.Discovery().RESTClient().Get().AbsPath(serverlb.ReadyPath).MaxRetries(0).DoRaw(asking)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(said) > apiReminder {
			said = time.Now()
			r.log.Infof("This server runs no API server, and its node waits for one that does: kedge server --disable-etcd --server %s, with this one's token (%v)", r.url, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}

// Informers implements api.
func (r *remoteAPI) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	return r.objects.Informers(ctx)
}

// Certificate implements api.
func (*remoteAPI) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }

// ServeHTTP refuses what is not the supervisor's, /readyz too: clients are to use
// another server.
func (r *remoteAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	servers, _ := r.servers.Servers()
	http.Error(w, fmt.Sprintf("this server runs no API server (disable-apiserver); those that do are at %v", servers), http.StatusServiceUnavailable)
}

// followLeases is an serverlb.FollowConfig.Source: the API servers that have a lease.
func followLeases(ctx context.Context, store datastore.Datastore, port int, learn func([]string)) error {
	client, err := datastore.NewClient(store.Endpoint())
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
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
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// newEtcdElsewhere returns the datastore of a server without etcd: the members of
// others, at their one port.
func newEtcdElsewhere(cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) (*state, error) {
	servers := serverlb.New(serverlb.Config{Server: cfg.Agent.Address(), NodeName: node.Name, File: dir.EtcdServers()})
	store, err := etcdremote.New(etcdremote.Config{
		Endpoints: "https://" + pki.APIName + ":6443",
		Files: datastore.TLS{
			CAFile: certificates.ServerCAFile, CertFile: certificates.Etcd.ClientCertFile, KeyFile: certificates.Etcd.ClientKeyFile,
		},
		Dial:   untilReached(servers.DialContext),
		What:   "the etcd of the cluster's other servers",
		Advice: "whether those run that have it, and most of them",
	})
	if err != nil {
		return nil, err
	}
	return &state{
		Datastore: store,
		etcd:      etcdElsewhere{servers},
		follow:    servers.Follow(serverlb.FollowConfig{Path: join.EtcdPath, TLS: certificates.EtcdClientTLS()}),
	}, nil
}

// untilReached dials again and again until ctx ends. gRPC waits for up to two minutes
// after a dial that failed.
func untilReached(dial join.Dial) join.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		for {
			conn, err := dial(ctx, network, address)
			if err == nil {
				return conn, nil
			}
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(retry):
			}
		}
	}
}

// etcdElsewhere is what a server without etcd tells other servers of it.
type etcdElsewhere struct{ servers *serverlb.Balancer }

// Admit implements supervisor.Etcd.
func (e etcdElsewhere) Admit(context.Context, join.MemberRequest) (join.MemberResponse, error) {
	addresses, _ := e.Members()
	return join.MemberResponse{}, fmt.Errorf("it has no etcd itself (disable-etcd): give --server one that has, of %v", addresses)
}

// Members implements supervisor.Etcd.
func (e etcdElsewhere) Members() ([]string, bool) {
	addresses, _ := e.servers.Servers()
	return addresses, false
}

// ServeHTTP implements supervisor.Etcd.
func (etcdElsewhere) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
