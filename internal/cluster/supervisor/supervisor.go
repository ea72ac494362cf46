// Package supervisor owns the server's one port: listener, TLS and mux. It
// admits nodes to the cluster itself, and hands all other requests on to the API
// server's handler as that would have received them from its own listener. The
// server package opens the port with Listen first of all and runs the
// Supervisor as a component.
package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// stopPatience is how long requests may take to end at a stop. The API server
// has stopped and drained before, so none should be left.
const stopPatience = 5 * time.Second

// Config is what a Supervisor needs.
type Config struct {
	// Listener comes from Listen; the Supervisor closes it.
	Listener    net.Listener
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// PKI knows nodes by their certificates, and signs them.
	PKI *pki.Server
	// Registry knows which nodes the cluster has admitted.
	Registry *registration.Registry
	// Dir is where the join tokens are.
	Dir datadir.Dir
	// Settings is what nodes are told of the cluster.
	Settings join.Settings
	// Client calls the API as system:kedge:supervisor, which may create TokenReviews.
	Client *rest.Config
	// Tunnel takes the connection that a node opens for being dialed through.
	Tunnel func(w http.ResponseWriter, r *http.Request, node string)
	// Etcd is for the other servers of the cluster: nil where there can be none.
	Etcd Etcd
	// Token is what servers with one datastore agree on; nil without others.
	Token *join.SharedToken
	// APIServers are HOST:PORT of the servers with an API, if this one has none.
	APIServers func() []string
	// API answers everything that is not the supervisor's own, and until the
	// API server is ready it answers 503 itself.
	API http.Handler
	// Now is the time to judge TLS by; nil for the system's.
	Now func() time.Time
}

// Etcd is what a server has of the cluster's etcd: a member, or the way to those of
// others.
type Etcd interface {
	// Admit takes the member of a server that joins into the cluster.
	Admit(context.Context, join.MemberRequest) (join.MemberResponse, error)
	// Members returns where servers without a member reach one, HOST:PORT, and
	// whether it is of use here.
	Members() (addresses []string, usable bool)
	// ServeHTTP answers their calls.
	http.Handler
}

// Supervisor is the component that serves the port.
type Supervisor struct {
	cfg   Config
	log   *logrus.Entry
	conns connections
	// strangers are those of conns that have shown no credentials yet.
	strangers *strangers
	// client is made of cfg.Client; tests put a fake one here.
	client kubernetes.Interface
}

// New returns the supervisor of a listener.
func New(cfg Config) *Supervisor {
	s := &Supervisor{cfg: cfg, log: logrus.WithField("component", "supervisor"), strangers: newStrangers()}
	cfg.Registry.OnEnd(s.disconnect)
	return s
}

// Name implements component.Component.
func (s *Supervisor) Name() string { return "supervisor" }

// Run implements component.Component: it serves until ctx is cancelled. Then
// it accepts nothing more, ends the watches, gives requests a few seconds, and
// closes every connection, also those that were upgraded.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	if s.client == nil {
		client, err := kubernetes.NewForConfig(s.cfg.Client)
		if err != nil {
			return errors.Join(fmt.Errorf("make client: %w", err), s.cfg.Listener.Close())
		}
		s.client = client
	}
	requests := &requests{next: s.strangers.judge(s.freshen(newMux(s.routes())))}
	// Cancelled at the stop, so that watches end.
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
	// Shutdown leaves upgraded connections alone (exec, port-forward): those
	// are closed first, since their handlers wait for them.
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
