// Package apiserver runs kube-apiserver as a component of this process. It sets
// the options that upstream's program gets on its command line, and replaces what
// only a separate process needs: the listener, the connections to the datastore
// and to itself, the egress proxies, the signal handlers. The server package makes
// the component; the supervisor passes requests from outside to it.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/v3/kubernetes"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/compatibility"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
	"github.com/kedge-dev/kedge/internal/controlplane/nodescope"
)

const (
	// readyPoll is how often the starting server is asked whether it is ready.
	readyPoll = 50 * time.Millisecond
	// slowStart is after how long what it waits for is logged, each time.
	slowStart = 20 * time.Second
	// drainTime is how long requests may go on after no more are taken: upstream
	// alone would wait a minute for them. It also bounds the stop of a server that
	// was still starting.
	drainTime = 5 * time.Second
	// stopNotice is how long a server that has others beside it is not ready
	// before it takes no more requests: who balances load sends them elsewhere by
	// then. Upstream's --shutdown-delay-duration, which wins.
	stopNotice = 2 * time.Second
)

// Config is what New has to know.
type Config struct {
	// Addr is where the supervisor listens: a *net.TCPAddr.
	Addr net.Addr
	// AdvertiseAddress is the address of the API that pods are told.
	AdvertiseAddress netip.Addr
	Cluster          config.Cluster
	// Dir is where kedge's own configuration files for it are.
	Dir datadir.Dir
	// PodSecurityStandard is for namespaces without labels for it; empty leaves it
	// to upstream, or to Args.
	PodSecurityStandard string
	// DatastoreURL is where etcd's protocol is spoken; several with commas
	// between them are members of one etcd.
	DatastoreURL string
	// The files for TLS with it; empty where there is none.
	DatastoreCAFile, DatastoreCertFile, DatastoreKeyFile string
	// DialDatastore connects to it, whatever the address; nil dials that.
	DialDatastore func(ctx context.Context, network, address string) (net.Conn, error)
	// SharedDatastore says that other API servers use the datastore too.
	SharedDatastore bool
	// NewDatastoreClient returns a client of the same datastore that needs no
	// connection. Nil if there is none.
	NewDatastoreClient func() *kubernetes.Client
	Files              pki.Files
	// Now is the time client certificates are judged by.
	Now func() time.Time
	// Egress is how kubelets, webhooks and aggregated APIs are reached.
	Egress Egress
	// Transformers encrypt what is stored; nil leaves it to Args.
	Transformers value.ResourceTransformers
	// Args are the user's arguments of kube-apiserver, as name=value.
	Args []string
	// Scopes are what the services of nodes may have of some kinds of objects.
	Scopes nodescope.Scopes
}

// Server is kube-apiserver. It is an http.Handler for the supervisor, which
// must pass r.TLS on as it came: client certificates are in it.
type Server struct {
	config  Config
	options *options.ServerRunOptions
	log     *logrus.Entry

	mu sync.RWMutex
	// serving is nil before the server can answer and after it has stopped.
	serving *serving
	// certificates are the user's for names of their own.
	certificates []dynamiccertificates.SNICertKeyContentProvider
}

// serving is a server that has been built.
type serving struct {
	handler http.Handler

	// guard is for the ports of the controllers and the scheduler.
	guard healthport.Guard
	// authorizes tells whether the authorizer knows all roles, those of the control
	// plane's own components among them. open says that it has done so once.
	authorizes func() bool
	open       atomic.Bool
	// objects are those that the API server has read for itself, and what
	// others in this process want besides.
	objects *objectcache.Cache

	// ctx ends when what is still being served must.
	ctx      context.Context
	requests sync.WaitGroup
	// stopping ends when the server begins to stop, which takes a while.
	stopping context.Context
}

// New returns an error if the user's arguments are wrong.
func New(c Config) (*Server, error) {
	o, err := newOptions(&c)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, options: o}
	s.log = logrus.WithField("component", s.Name())
	return s, nil
}

// Name implements component.Component.
func (s *Server) Name() string { return "apiserver" }

// RequestTimeout is how long a request may take that is no watch.
func (s *Server) RequestTimeout() time.Duration {
	return s.options.GenericServerRunOptions.RequestTimeout
}

// Run implements component.Component. The server is ready when /readyz is ok.
func (s *Server) Run(ctx context.Context, ready func()) error {
	// Feature gates are shared by all programs, whose arguments have been
	// parsed by their constructors; everything else starts after this one.
	if err := errors.Join(setGates(), compatibility.DefaultComponentGlobalsRegistry.Set()); err != nil {
		return fmt.Errorf("set feature gates: %w", err)
	}
	// stop is for upstream, and abort for the requests it may be waiting for.
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	requests, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	server, err := s.build(stop, requests)
	if err != nil {
		return fmt.Errorf("build API server: %w", err)
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare API server: %w", err)
	}
	dropStacks(server.GenericAPIServer)
	ended := make(chan error, 1)
	go func() { ended <- prepared.Run(stop) }()

	started, err := s.awaitReady(ctx, ended)
	if err != nil {
		return err
	}
	if started {
		ready()
		select {
		case <-ctx.Done():
		case err := <-ended:
			return endedEarly(err)
		}
	}
	cancel()
	timer := time.AfterFunc(s.options.GenericServerRunOptions.ShutdownDelayDuration+drainTime, abort)
	defer timer.Stop()
	err = <-ended
	s.close(abort)
	if err != nil {
		return fmt.Errorf("stop API server: %w", err)
	}
	return nil
}

// build makes upstream's chain of servers and lets ServeHTTP answer with it:
// upstream's own start needs answers, by loopback.
func (s *Server) build(stop, requests context.Context) (*aggregator.APIAggregator, error) {
	if err := errors.Join(writeFiles(s.options, &s.config), useAccountKeys(s.options, &s.config)); err != nil {
		return nil, err
	}
	direct := newDirectStorage(s.options.Etcd, s.config)
	completedOptions, err := s.options.Complete(stop)
	if err != nil {
		return nil, err
	}
	if faults := completedOptions.Validate(); len(faults) > 0 {
		return nil, utilerrors.NewAggregate(faults)
	}
	built, objects, err := newConfig(stop, completedOptions, s.config.Egress, s.loopback())
	if err != nil {
		return nil, err
	}
	useTransformers(built, s.config.Transformers)
	if direct != nil {
		if err := direct.use(stop, built); err != nil {
			return nil, err
		}
	}
	// The aggregator is the outermost of the chain: its filters alone see
	// requests as they come.
	generic := built.Aggregator.GenericConfig
	ca, err := clientCA(s.options.Authentication)
	if err != nil {
		return nil, err
	}
	generic.Authentication.Authenticator = authenticate(generic.Authentication.Authenticator, ca, s.config.Now, s.options.Authentication)

	if err := nodescope.Use(&generic.Config, s.config.Scopes); err != nil {
		return nil, err
	}

	server, err := createServerChain(built)
	if err != nil {
		return nil, err
	}
	authorizes := func() bool { return true }
	if slices.Contains(s.options.Authorization.Modes, "RBAC") {
		authorizes = allRoles(built.KubeAPIs.ControlPlane.VersionedInformers.Rbac().V1())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.certificates = generic.SecureServing.SNICerts
	s.serving = &serving{
		handler:    server.GenericAPIServer.Handler,
		guard:      healthport.Guard{ClientCA: ca, Authenticator: generic.Authentication.Authenticator, Authorizer: generic.Authorization.Authorizer},
		authorizes: authorizes,
		objects:    objects,
		ctx:        requests,
		stopping:   stop,
	}
	return server, nil
}

// close waits for the requests in flight, which end soon after abort.
func (s *Server) close(abort func()) {
	s.mu.Lock()
	served := s.serving
	s.serving = nil
	s.mu.Unlock()
	abort()
	drained := make(chan struct{})
	go func() {
		served.requests.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainTime):
		// Connections handed over to a tunnel (exec, port-forward) end with the
		// supervisor's, or with the process.
		s.log.Debug("Requests were still being served when the API server had stopped")
	}
}
