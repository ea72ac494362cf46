package apiserver

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// ClientConfig returns the configuration of clients that reach the API server
// in process as the named user, who is in the groups and in
// system:authenticated. Authorization and admission apply as to any other user.
// It may be called at any time: requests before the server answers get 503, and
// client-go tries them again.
func (s *Server) ClientConfig(name string, groups ...string) *rest.Config {
	return &rest.Config{
		// This name appears in messages only.
		Host:      "http://kubernetes.default.svc",
		Transport: inprocess.NewTransport(http.HandlerFunc(s.serve), name, groups...),
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		// API priority and fairness limits clients.
		QPS:                -1,
		DisableCompression: true,
	}
}

// ClientUntil is ClientConfig for components that run only while this server is
// elected. Their requests end with ctx, so that they write nothing after their
// term, and do not wait then for a datastore that does not answer.
func (s *Server) ClientUntil(ctx context.Context, name string, groups ...string) *rest.Config {
	config := s.ClientConfig(name, groups...)
	config.Transport = inprocess.Until(ctx, config.Transport)
	return config
}

// Informers returns a factory of the informers that all of this process shares.
// The caller ends with ctx, and calls the factory's Shutdown then. The API server
// itself reads the objects, so give the factory to components only that may read
// them. It fails while the API server does not run.
func (s *Server) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	return s.View(ctx, objectcache.Options{})
}

// View is Informers with options.
func (s *Server) View(ctx context.Context, options objectcache.Options) (informers.SharedInformerFactory, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.serving == nil {
		return nil, errNotServing
	}
	return s.serving.objects.View(ctx, options), nil
}

// Unused tells whether a resource is one of custom resources of which there are no objects.
// While the API server does not run, none is unused.
func (s *Server) Unused(ctx context.Context, resource schema.GroupResource) bool {
	s.mu.RLock()
	served := s.serving
	s.mu.RUnlock()
	return served != nil && served.unused(ctx, resource)
}

// Guard returns what decides about callers of the API, for other ports of this
// process. It fails while the API server does not run.
func (s *Server) Guard() (healthport.Guard, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.serving == nil {
		return healthport.Guard{}, errNotServing
	}
	return s.serving.guard, nil
}

// errNotServing is the error of components that are started before the API server.
var errNotServing = errors.New("the API server is not running")
