// Package controlplane runs Kubernetes's own control plane, the API server,
// the controllers and the scheduler, as components of this process. It sets the
// options that upstream's programs would get on their command lines, and
// replaces what makes sense for separate processes only: listeners, kubeconfigs,
// leader election, signal handlers. The server package wires the three.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/compatibility"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
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

// APIServerConfig is what NewAPIServer has to know.
type APIServerConfig struct {
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

// APIServer is kube-apiserver. It is an http.Handler for the supervisor, which
// must pass r.TLS on as it came: client certificates are in it.
type APIServer struct {
	config  APIServerConfig
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

	// For the controllers' and the scheduler's own ports.
	clientCA      dynamiccertificates.CAContentProvider
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
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

// NewAPIServer returns an error if the user's arguments are wrong.
func NewAPIServer(c APIServerConfig) (*APIServer, error) {
	o, err := apiServerOptions(&c)
	if err != nil {
		return nil, err
	}
	a := &APIServer{config: c, options: o}
	a.log = logrus.WithField("component", a.Name())
	return a, nil
}

// Name implements component.Component.
func (a *APIServer) Name() string { return "apiserver" }

// RequestTimeout is how long a request may take that is no watch.
func (a *APIServer) RequestTimeout() time.Duration {
	return a.options.GenericServerRunOptions.RequestTimeout
}

// Run implements component.Component. The server is ready when /readyz is ok.
func (a *APIServer) Run(ctx context.Context, ready func()) error {
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

	server, err := a.build(stop, requests)
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

	started, err := a.awaitReady(ctx, ended)
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
	timer := time.AfterFunc(a.options.GenericServerRunOptions.ShutdownDelayDuration+drainTime, abort)
	defer timer.Stop()
	err = <-ended
	a.close(abort)
	if err != nil {
		return fmt.Errorf("stop API server: %w", err)
	}
	return nil
}

// build makes upstream's chain of servers and lets ServeHTTP answer with it:
// upstream's own start needs answers, by loopback.
func (a *APIServer) build(stop, requests context.Context) (*aggregator.APIAggregator, error) {
	if err := errors.Join(writeFiles(a.options, &a.config), useAccountKeys(a.options, &a.config)); err != nil {
		return nil, err
	}
	direct := newDirectStorage(a.options.Etcd, a.config)
	completedOptions, err := a.options.Complete(stop)
	if err != nil {
		return nil, err
	}
	if faults := completedOptions.Validate(); len(faults) > 0 {
		return nil, utilerrors.NewAggregate(faults)
	}
	built, objects, err := newAPIServerConfig(stop, completedOptions, a.config.Egress, a.loopback())
	if err != nil {
		return nil, err
	}
	useTransformers(built, a.config.Transformers)
	if direct != nil {
		if err := direct.use(stop, built); err != nil {
			return nil, err
		}
	}
	// The aggregator is the outermost of the chain: its filters alone see
	// requests as they come.
	generic := built.Aggregator.GenericConfig
	ca, err := clientCA(a.options.Authentication)
	if err != nil {
		return nil, err
	}
	generic.Authentication.Authenticator = authenticate(generic.Authentication.Authenticator, ca, a.config.Now, a.options.Authentication)

	if err := nodescope.Use(&generic.Config, a.config.Scopes); err != nil {
		return nil, err
	}

	server, err := createServerChain(built)
	if err != nil {
		return nil, err
	}
	authorizes := func() bool { return true }
	if slices.Contains(a.options.Authorization.Modes, "RBAC") {
		authorizes = allRoles(built.KubeAPIs.ControlPlane.VersionedInformers.Rbac().V1())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.certificates = generic.SecureServing.SNICerts
	a.serving = &serving{
		handler:       server.GenericAPIServer.Handler,
		clientCA:      ca,
		authenticator: generic.Authentication.Authenticator,
		authorizer:    generic.Authorization.Authorizer,
		authorizes:    authorizes,
		objects:       objects,
		ctx:           requests,
		stopping:      stop,
	}
	return server, nil
}

// awaitReady returns whether the server has become ready, or why it ended. If
// ctx ends meanwhile it waits on for a while: upstream's start hooks end the
// process if they fail, also if they were cancelled (apiserver/pkg/server/hooks.go,
// runPostStartHook).
func (a *APIServer) awaitReady(ctx context.Context, ended <-chan error) (bool, error) {
	client := &http.Client{Transport: a.loopback()}
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	slow := time.NewTicker(slowStart)
	defer slow.Stop()
	cancelled := ctx.Done()
	var giveUp <-chan time.Time
	var missing string
	for {
		select {
		case err := <-ended:
			return false, endedEarly(err)
		case <-giveUp:
			return false, nil
		case <-cancelled:
			cancelled, giveUp = nil, time.After(drainTime)
		case <-slow.C:
			a.log.Warnf("Still not ready:\n%s", missing)
		case <-poll.C:
			var ok bool
			if ok, missing = readyz(client); !ok {
				continue
			}
			if served, release := a.acquire(); served != nil {
				release()
				if served.authorizes() {
					return ctx.Err() == nil, nil
				}
				missing = "the authorizer has not seen all bootstrap roles"
			}
		}
	}
}

// readyz asks the server for its checks, and returns the failing ones.
func readyz(client *http.Client) (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kubernetes.default.svc/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return false, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, err.Error()
	}
	return response.StatusCode == http.StatusOK, failingChecks(string(body))
}

func endedEarly(err error) error {
	if err == nil {
		return errors.New("API server ended without being asked to")
	}
	return fmt.Errorf("run API server: %w", err)
}

// close waits for the requests in flight, which end soon after abort.
func (a *APIServer) close(abort func()) {
	a.mu.Lock()
	served := a.serving
	a.serving = nil
	a.mu.Unlock()
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
		a.log.Debug("Requests were still being served when the API server had stopped")
	}
}
