package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// loopback returns the transport by which the API server calls itself.
func (s *Server) loopback() http.RoundTripper {
	return inprocess.NewTransport(http.HandlerFunc(s.serve), user.APIServerUser, user.SystemPrivilegedGroup)
}

// callInProcess makes later clients of config use transport, whatever address and
// authorities config names. It keeps upstream's wrappers around the transport.
//
//upstream:relies-on k8s.io/client-go/rest/transport.go HTTPWrappersForConfig TransportFor
func callInProcess(config *rest.Config, transport http.RoundTripper) {
	outer := config.WrapTransport
	config.WrapTransport = func(http.RoundTripper) http.RoundTripper { return transport }
	if outer != nil {
		config.Wrap(outer)
	}
}
