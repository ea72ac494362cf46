package apiserver

import (
	"context"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"
)

// acquire returns the server that answers, and what to call when it has.
func (s *Server) acquire() (*serving, func()) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.serving == nil {
		return nil, nil
	}
	s.serving.requests.Add(1)
	return s.serving, s.serving.requests.Done
}

// ServeHTTP answers requests from outside this process. It answers with 503 before the
// server can and after it has stopped, and as long as the authorizer does not know all
// roles: it would forbid what is allowed. Checks of health are answered before.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.RLock()
	served := s.serving
	s.mu.RUnlock()
	health := slices.ContainsFunc(healthPaths, func(path apiserver.AnonymousAuthCondition) bool { return path.Path == r.URL.Path })
	if served != nil && !health && !served.open.Load() {
		if !served.authorizes() {
			unavailable(w)
			return
		}
		served.open.Store(true)
	}
	s.serve(w, r)
}

// serve answers requests of this process too.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	served, release := s.acquire()
	if served == nil {
		unavailable(w)
		return
	}
	defer release()
	// As upstream's GoawayFilter: the client's next request goes by a connection
	// that it opens then, to another server if its way has others.
	if r.ProtoMajor == 2 && served.stopping.Err() != nil {
		w.Header().Set("Connection", "close")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(served.ctx, cancel)()
	served.handler.ServeHTTP(w, r.WithContext(ctx))
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1") // client-go waits so many seconds
	http.Error(w, "the API server is starting or stopping", http.StatusServiceUnavailable)
}
