// Package apiserver runs kube-apiserver as a component of this process. It sets
// the options that upstream's program gets on its command line, and replaces what
// only a separate process needs: the listener, the connections to the datastore
// and to itself, the egress proxies, the signal handlers. The server package makes
// the component; the supervisor passes requests from outside to it.
package apiserver

import (
	"context"
	"crypto/tls"
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
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/compatibility"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
	"github.com/kedge-dev/kedge/internal/controlplane/lean"
	"github.com/kedge-dev/kedge/internal/controlplane/nodescope"
	"github.com/kedge-dev/kedge/internal/controlplane/resourcemetrics"
)

const (
	// drainTime is how long requests may take after the server accepts no more of
	// them. Upstream alone waits a minute. It also limits the stop of a server that
	// is still starting.
	drainTime = 5 * time.Second
	// stopNotice is how long a server beside others is not ready before it accepts
	// no more requests, so that load balancers choose another server. The user's
	// shutdown-delay-duration wins.
	stopNotice = 2 * time.Second
)

// Config is what New has to know.
type Config struct {
	// Addr is where the supervisor listens: a *net.TCPAddr.
	Addr net.Addr
	// AdvertiseAddress is the address of the API in the endpoints of the Service
	// kubernetes.
	AdvertiseAddress netip.Addr
	// VIP is the address that servers share, or zero.
	VIP     netip.Addr
	Cluster config.Cluster
	// Dir is where the server writes its audit policy and admission configuration.
	Dir datadir.Dir
	// PodSecurityStandard applies to namespaces without labels for it. If it is
	// empty, upstream's default or Args apply.
	PodSecurityStandard string
	Datastore           Datastore
	Files               pki.Files
	// Now returns the time by which client certificates are judged.
	Now func() time.Time
	// Egress is how the server reaches kubelets, webhooks and aggregated APIs.
	Egress Egress
	// Transformers encrypt stored objects. If they are nil, Args decide.
	Transformers value.ResourceTransformers
	// Paths are answered by these handlers instead of upstream's.
	Paths map[string]http.Handler
	// Args are the user's arguments of kube-apiserver, as name=value.
	Args []string
	// Scopes limit the services of nodes to the objects of their node.
	Scopes nodescope.Scopes
	// Deletions connects to the datastore, into which the server writes who deletes an object. It is nil without a backup, which
	// takes that along.
	Deletions func() (*clientv3.Client, error)
	// Lean makes the server small. If it is nil, the server does everything as upstream's.
	Lean *lean.Hooks
	// MetricsTLS are the settings with which the metrics API calls kubelets. If they are
	// nil, the server has no metrics API.
	MetricsTLS *tls.Config
}

// Datastore is where the server stores objects, and how it gets there.
type Datastore struct {
	// URL is where etcd's protocol is spoken. Several with commas between them are
	// members of one etcd.
	URL string
	// CAFile, CertFile and KeyFile are for TLS. They are empty where there is none.
	CAFile, CertFile, KeyFile string
	// Dial connects to the datastore, whatever the address. If it is nil, the
	// address is dialed.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NewClient returns a client that needs no connection, because the datastore is
	// in this process. It is nil if the datastore is elsewhere.
	NewClient func() *kubernetes.Client
	// Shared says that other API servers use the datastore too.
	Shared bool
}

// Server is kube-apiserver. It is an http.Handler for the supervisor, which must not
// change r.TLS: client certificates are in it.
type Server struct {
	config  Config
	options *options.ServerRunOptions
	log     *logrus.Entry
	damaged *damagedObjects
	// answered counts requests, and answering is how long they took, in nanoseconds.
	answered, answering atomic.Int64

	mu sync.RWMutex
	// serving is nil before the server can answer and after it has stopped.
	serving *serving
	// certificates are the user's tls-sni-cert-key.
	certificates []dynamiccertificates.SNICertKeyContentProvider
}

// serving is a server that has been built.
type serving struct {
	handler http.Handler

	// guard is for the ports of the controllers and the scheduler.
	guard healthport.Guard
	// authorizes tells whether the authorizer has read all roles. open says that it
	// has told so once.
	authorizes func() bool
	open       atomic.Bool
	// objects are the informers that all of this process shares.
	objects *objectcache.Cache
	// unused tells whether a resource is one of custom resources without objects.
	unused func(context.Context, schema.GroupResource) bool

	// ctx ends the requests that are still being served.
	ctx      context.Context
	requests sync.WaitGroup
	// stopping ends when the server begins to stop, some seconds before ctx.
	stopping context.Context
}

// New makes the component. It returns an error if the user's arguments are wrong.
func New(c Config) (*Server, error) {
	o, err := newOptions(&c)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, options: o}
	s.log = logrus.WithField("component", s.Name())
	s.damaged = newDamagedObjects(s.log)
	return s, nil
}

// Name implements component.Component.
func (s *Server) Name() string { return "apiserver" }

// RequestTimeout returns how long a request other than a watch may take.
func (s *Server) RequestTimeout() time.Duration {
	return s.options.GenericServerRunOptions.RequestTimeout
}

// Run implements component.Component. The server is ready when /readyz is ok.
func (s *Server) Run(ctx context.Context, ready func()) error {
	// All programs share the feature gates. Their constructors have parsed the
	// arguments already, and every other component starts after this one.
	if err := errors.Join(setGates(s.options), compatibility.DefaultComponentGlobalsRegistry.Set()); err != nil {
		return fmt.Errorf("set feature gates: %w", err)
	}
	// stop ends upstream's server, which waits for its requests; abort ends those.
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

// build makes upstream's chain of servers and lets ServeHTTP answer with it, because
// upstream calls the server by loopback while it starts.
func (s *Server) build(stop, requests context.Context) (*aggregator.APIAggregator, error) {
	if err := errors.Join(writeFiles(s.options, &s.config), useAccountKeys(s.options, &s.config)); err != nil {
		return nil, err
	}
	hooks := s.config.Lean
	direct := newDirectStorage(s.options.Etcd, s.config.Datastore, hooks, s.damaged)
	completedOptions, err := s.options.Complete(stop)
	if err != nil {
		return nil, err
	}
	if faults := completedOptions.Validate(); len(faults) > 0 {
		return nil, utilerrors.NewAggregate(faults)
	}
	var further []*runtime.Scheme
	if s.config.MetricsTLS != nil {
		further = append(further, resourcemetrics.Scheme())
	}
	built, objects, err := newConfig(stop, completedOptions, s.config.Egress, s.loopback(), hooks.Transform, further...)
	if err != nil {
		return nil, err
	}
	useTransformers(built, s.config.Transformers)
	if direct != nil {
		if err := direct.use(stop, built); err != nil {
			return nil, err
		}
	}
	// The aggregator is the outermost server of the chain: only its filters see
	// requests unchanged.
	generic := built.Aggregator.GenericConfig
	// The API server follows the file of this one.
	ca := built.KubeAPIs.ControlPlane.ClusterAuthenticationInfo.ClientCA
	generic.Authentication.Authenticator = authenticate(generic.Authentication.Authenticator, ca, s.config.Now, s.options.Authentication)

	if err := nodescope.Use(&generic.Config, s.config.Scopes); err != nil {
		return nil, err
	}
	if direct != nil {
		hooks.Renew(&generic.Config, built.KubeAPIs.ControlPlane.Generic.AdmissionControl)
	}

	metricsGroup, err := s.metricsGroup(stop, built)
	if err != nil {
		return nil, err
	}
	server, unused, err := createServerChain(built, metricsGroup, hooks, direct.stored())
	if err != nil {
		return nil, err
	}
	if err := lengthenHooks(server.GenericAPIServer, s.log); err != nil {
		return nil, err
	}
	metrics.Install(server.GenericAPIServer.Handler.NonGoRestfulMux, s.config.Paths)
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
		unused:     unused,
		ctx:        requests,
		stopping:   stop,
	}
	return server, nil
}

// close aborts the requests in flight and waits for their end, at most drainTime.
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
