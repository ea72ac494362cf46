package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	genericmanager "k8s.io/controller-manager/app"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// listenPatience is how long a port may be taken yet.
const listenPatience = 2 * time.Second

// onLoopback sets where a component serves its health and metrics, before the
// user's arguments are parsed: upstream's port, on loopback only.
func onLoopback(o *genericoptions.SecureServingOptions, files pki.Files) {
	o.BindAddress = net.IPv4(127, 0, 0, 1)
	o.ServerCert.CertKey.CertFile = files.ServingCertFile
	o.ServerCert.CertKey.KeyFile = files.ServingKeyFile
}

// secure opens the port of a component other than the API server. Who may call
// is asked of the API server beside it, without the detour through
// TokenReviews and SubjectAccessReviews that separate processes need.
func (a *APIServer) secure(o *genericoptions.SecureServingOptions) (*genericapiserver.SecureServingInfo, genericapiserver.AuthenticationInfo, genericapiserver.AuthorizationInfo, error) {
	authentication, authorization := genericapiserver.AuthenticationInfo{}, genericapiserver.AuthorizationInfo{}
	a.mu.RLock()
	served := a.serving
	a.mu.RUnlock()
	if served == nil {
		return nil, authentication, authorization, errNotServing
	}
	var serving *genericapiserver.SecureServingInfo
	// The listener is for this time only: it is closed at the end.
	once := *o
	if once.BindPort > 0 {
		var err error
		if once.Listener, err = listen(net.JoinHostPort(o.BindAddress.String(), strconv.Itoa(o.BindPort))); err != nil {
			return nil, authentication, authorization, fmt.Errorf("listen for health and metrics: %w", err)
		}
	}
	if err := once.ApplyTo(&serving); err != nil {
		return nil, authentication, authorization, fmt.Errorf("listen for health and metrics: %w", err)
	}
	authentication.Authenticator = served.authenticator
	authorization.Authorizer = served.authorizer
	if serving != nil { // else the user has turned the port off
		if err := authentication.ApplyClientCert(served.clientCA, serving); err != nil {
			return nil, authentication, authorization, fmt.Errorf("ask for client certificates: %w", err)
		}
	}
	return serving, authentication, authorization, nil
}

// listen opens a port. One that this process closed when it won the election may be
// open for a moment longer, in a child that is forked and has not begun to run its
// program.
func listen(address string) (net.Listener, error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		listener, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > listenPatience {
			return listener, err
		}
	}
}

// serveSide answers /healthz, /metrics and the like on the port of a component
// other than the API server until ctx ends. It returns a function that waits for
// the end, when the port is free again.
func (a *APIServer) serveSide(ctx context.Context, o *genericoptions.SecureServingOptions, handler http.Handler) (func(), error) {
	serving, authentication, authorization, err := a.secure(o)
	if err != nil || serving == nil {
		return func() {}, err
	}
	stopped, unheard, err := serving.Serve(genericmanager.BuildHandlerChain(handler, &authorization, &authentication), 0, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	return func() { <-unheard; <-stopped }, nil
}
