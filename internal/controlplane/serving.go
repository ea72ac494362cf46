package controlplane

import (
	"fmt"
	"net"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/kedge-dev/kedge/internal/pki"
)

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
	if err := o.ApplyTo(&serving); err != nil {
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
