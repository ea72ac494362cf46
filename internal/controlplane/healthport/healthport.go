// Package healthport serves /healthz, /metrics and the like of the components
// beside the API server, each on a port of its own. The packages controllers and
// scheduler call it. The API server of this process decides who may call the
// port: separate processes need TokenReviews and SubjectAccessReviews for that.
package healthport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/controller-manager/app"
)

// listenPatience is how long Open waits for a port that is taken.
const listenPatience = 2 * time.Second

// Guard decides who may call a port.
type Guard struct {
	ClientCA      dynamiccertificates.CAContentProvider
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
}

// SetDefaults opens the port, which is upstream's, at one address only, with the
// certificate in these files. Call it before the user's arguments are parsed.
func SetDefaults(o *options.SecureServingOptions, address netip.Addr, certFile, keyFile string) {
	o.BindAddress = address.AsSlice()
	o.ServerCert.CertKey.CertFile = certFile
	o.ServerCert.CertKey.KeyFile = keyFile
}

// listen opens a TCP port. A port that this process closed when it won the election
// may stay open for a moment: a child process that was just forked still has it
// until the child runs its own program.
func listen(address string) (net.Listener, error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		listener, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > listenPatience {
			return listener, err
		}
	}
}

// Serve opens the port and answers with handler until ctx ends. It returns a
// function that waits for the end, when the port is free again. It does nothing if the
// user has turned the port off. It does not change o.
func Serve(ctx context.Context, o *options.SecureServingOptions, guard Guard, handler http.Handler) (wait func(), err error) {
	once := *o
	if once.BindPort > 0 {
		if once.Listener, err = listen(net.JoinHostPort(o.BindAddress.String(), strconv.Itoa(o.BindPort))); err != nil {
			return nil, fmt.Errorf("listen for health and metrics: %w", err)
		}
	}
	var serving *server.SecureServingInfo
	if err := once.ApplyTo(&serving); err != nil {
		return nil, fmt.Errorf("listen for health and metrics: %w", err)
	}
	if serving == nil {
		return func() {}, nil
	}
	authentication := server.AuthenticationInfo{Authenticator: guard.Authenticator}
	if err := authentication.ApplyClientCert(guard.ClientCA, serving); err != nil {
		return nil, fmt.Errorf("ask for client certificates: %w", err)
	}
	handler = app.BuildHandlerChain(handler, &server.AuthorizationInfo{Authorizer: guard.Authorizer}, &authentication)
	stopped, unheard, err := serving.Serve(handler, 0, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	return func() { <-unheard; <-stopped }, nil
}
