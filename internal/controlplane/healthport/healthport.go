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
	// ClientCA is the authority of client certificates. Its owner follows the file: each port would
	// otherwise follow it too.
	ClientCA      dynamiccertificates.CAContentProvider
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
}

// followed hides from upstream that an authority can follow its file.
type followed struct {
	dynamiccertificates.CAContentProvider
}

// SetDefaults opens the port, which is upstream's, at one address and on loopback, with
// the certificate in these files. Call it before the user's arguments are parsed.
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

// Addresses returns where a port with this bind address listens: there, and on loopback,
// where upstream's API server looks whether the component is healthy.
func Addresses(bind net.IP) []net.IP {
	loopback := net.IPv4(127, 0, 0, 1)
	if bind.IsUnspecified() || bind.Equal(loopback) {
		return []net.IP{bind}
	}
	return []net.IP{bind, loopback}
}

// Follow serves handler at the port until ctx ends, as upstream's programs do while another one
// leads, and waits until the port is free again.
func Follow(ctx context.Context, o *options.SecureServingOptions, guardOf func() (Guard, error), handler http.Handler) error {
	wait, err := Serve(ctx, o, guardOf, handler)
	if err != nil {
		return err
	}
	<-ctx.Done()
	wait()
	return nil
}

// Serve opens the port and answers with handler until ctx ends, to callers that the Guard of guardOf
// admits. It returns a function that waits for the end, when the port is free again. It does nothing if the
// user has turned the port off. It does not change o.
//
//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/rest/storage_core.go componentStatusStorage.serversToValidate
func Serve(ctx context.Context, o *options.SecureServingOptions, guardOf func() (Guard, error), handler http.Handler) (wait func(), err error) {
	guard, err := guardOf()
	if err != nil {
		return nil, err
	}
	if o.BindPort == 0 {
		return func() {}, nil
	}
	listeners := newListeners()
	fail := func(what string, err error) (func(), error) {
		_ = listeners.Close()
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for _, address := range Addresses(o.BindAddress) {
		listener, err := listen(net.JoinHostPort(address.String(), strconv.Itoa(o.BindPort)))
		if err != nil {
			return fail("listen for health and metrics", err)
		}
		listeners.add(listener)
	}
	own := *o
	own.Listener = listeners
	var serving *server.SecureServingInfo
	if err := own.ApplyTo(&serving); err != nil {
		return fail("listen for health and metrics", err)
	}
	authentication := server.AuthenticationInfo{Authenticator: guard.Authenticator}
	if err := authentication.ApplyClientCert(followed{guard.ClientCA}, serving); err != nil {
		return fail("ask for client certificates", err)
	}
	handler = app.BuildHandlerChain(handler, &server.AuthorizationInfo{Authorizer: guard.Authorizer}, &authentication)
	stopped, unheard, err := serving.Serve(handler, 0, ctx.Done())
	if err != nil {
		return fail("serve health and metrics", err)
	}
	return func() { <-unheard; <-stopped }, nil
}
