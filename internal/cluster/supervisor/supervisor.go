// Package supervisor owns the server's one port: listener, TLS, routes, and the
// admission of nodes and servers. Requests that are not for kedge itself go to the API
// server's handler, in the same form as from its own listener. The server package opens
// the port with Listen before anything else, and runs the Supervisor as a component.
package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
)

// stopPatience is how long requests may take to end when the Supervisor stops. The API
// server has stopped and drained before, so none should be left.
const stopPatience = 5 * time.Second

// Config is what a Supervisor has to know.
type Config struct {
	// Listener comes from Listen; the Supervisor closes it.
	Listener    net.Listener
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// PKI verifies nodes' certificates, and signs them.
	PKI *pki.Server
	// Registry knows which nodes the cluster has admitted.
	Registry *registration.Registry
	// Dir has the join tokens.
	Dir datadir.Dir
	// Settings is what the Supervisor tells nodes about the cluster.
	Settings join.Settings
	// Client calls the API as system:kedge:supervisor, which may create TokenReviews.
	Client *rest.Config
	// Tunnel takes over the connection that a node opens for its tunnel.
	Tunnel func(w http.ResponseWriter, r *http.Request, node string)
	// Etcd serves the other servers of the cluster. It is nil if there can be none.
	Etcd Etcd
	// Token is the token that servers with one datastore share. It is nil on a single
	// server.
	Token *join.SharedToken
	// Policies sends a node what its pods are held to, until ctx ends or send fails. It is
	// nil if this server does not know.
	Policies func(ctx context.Context, node string, send func(netpolicy.Update) error) error
	// Routes sends a node what its gateway serves, in the same way. It is nil if this server
	// does not know, or if the cluster has the gateway disabled.
	Routes func(ctx context.Context, node string, send func(routing.Update) error) error
	// Orders sends a node what it is to run, in the same way. It is nil if this server does
	// not know.
	Orders func(ctx context.Context, node string, send func(upgrades.Order) error) error
	// Volumes keeps the contents of volumes. It is nil if this server has no backup.
	Volumes volumedata.Server
	// Executable opens the executable with a digest. Its error is fs.ErrNotExist if this
	// server does not have it. It is nil if this server has none.
	Executable func(digest string) (*os.File, error)
	// APIServers returns HOST:PORT of the servers with an API server, if this one runs
	// none.
	APIServers func() []string
	// API answers everything that is not the supervisor's own. Until the API server is
	// ready, it answers 503.
	API http.Handler
	// Now is the clock that judges certificates. If it is nil, the system's clock does.
	Now func() time.Time
}

// Etcd is this server's part in the cluster's etcd: a member, or a client of the other
// servers' members.
type Etcd interface {
	// Admit adds the etcd member of a server that joins to the cluster.
	Admit(context.Context, join.MemberRequest) (join.MemberResponse, error)
	// Members returns where servers without a member reach one, HOST:PORT, and whether
	// this server's etcd works.
	Members() (addresses []string, usable bool)
	// ServeHTTP answers etcd's gRPC calls of those servers.
	http.Handler
}

// Supervisor is the component that serves the port.
type Supervisor struct {
	cfg   Config
	log   *logrus.Entry
	conns connections
	// strangers are those of conns that have not shown accepted credentials yet.
	strangers *strangers
	streams   streams
	// sending has an element for each executable that is being sent.
	sending chan struct{}
	// client is made from cfg.Client. Tests put a fake one here.
	client kubernetes.Interface
}

// New returns the supervisor of a listener.
func New(cfg Config) *Supervisor {
	s := &Supervisor{
		cfg: cfg, log: logrus.WithField("component", "supervisor"), strangers: newStrangers(),
		sending: make(chan struct{}, maxSending),
	}
	cfg.Registry.OnEnd(s.disconnect)
	return s
}

// Name implements component.Component.
func (s *Supervisor) Name() string { return "supervisor" }

// Run implements component.Component. It serves until ctx is cancelled. Then it accepts
// nothing more, ends the watches, gives requests a few seconds, and closes every
// connection, including upgraded ones.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	if s.client == nil {
		client, err := kubernetes.NewForConfig(s.cfg.Client)
		if err != nil {
			return errors.Join(fmt.Errorf("make client: %w", err), s.cfg.Listener.Close())
		}
		s.client = client
	}
	requests := &requests{next: s.strangers.judge(s.freshen(newMux(s.routes())))}
	// Cancelled when the component stops, so that watches end.
	base, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server, err := s.server(requests, base)
	if err != nil {
		return errors.Join(err, s.cfg.Listener.Close())
	}

	served := make(chan error, 1)
	go func() {
		served <- server.Serve(tls.NewListener(s.conns.track(s.strangers.listener(s.cfg.Listener)), server.TLSConfig))
	}()
	ready()
	select {
	case err = <-served:
		err = fmt.Errorf("serve on %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
		err = nil
	}

	endRequests()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	// Shutdown leaves upgraded connections open (exec, port-forward). They are closed
	// first, because their handlers wait for them.
	s.conns.closeUpgraded()
	_ = server.Shutdown(patience)
	_ = server.Close()
	s.conns.closeAll()
	if left := requests.wait(patience); left > 0 {
		s.log.Warnf("%d requests did not end in %s", left, stopPatience)
	}
	if err == nil {
		<-served
	}
	return err
}
