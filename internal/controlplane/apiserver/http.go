package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
)

// acquire returns the server that answers, and a function to call after the answer.
// Both are nil if the server does not run.
func (s *Server) acquire() (*serving, func()) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.serving == nil {
		return nil, nil
	}
	s.serving.requests.Add(1)
	return s.serving, s.serving.requests.Done
}

// ServeHTTP answers requests from outside this process. It answers 503 while the
// server does not run. It also answers 503, except to checks of health, until the
// authorizer has read all roles: without them it forbids what is allowed.
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

// serve answers requests from outside and from inside this process.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	served, release := s.acquire()
	if served == nil {
		unavailable(w)
		return
	}
	defer release()
	// A GOAWAY, as upstream's GoawayFilter sends it: the client opens a connection
	// for its next request, and its load balancer can choose another server.
	//upstream:relies-on k8s.io/apiserver/pkg/server/filters/goaway.go goaway.ServeHTTP
	if r.ProtoMajor == 2 && served.stopping.Err() != nil {
		w.Header().Set("Connection", "close")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(served.ctx, cancel)()
	began := time.Now()
	served.handler.ServeHTTP(w, r.WithContext(ctx))
	if !lasting(r) {
		s.answered.Add(1)
		s.answering.Add(int64(time.Since(began)))
	}
}

// lasting tells whether a request lasts as long as its client wants: a watch, a log that is followed, or a connection.
func lasting(r *http.Request) bool {
	return strings.Contains(r.URL.RawQuery, "watch=") || strings.Contains(r.URL.RawQuery, "follow=") || r.Header.Get("Upgrade") != ""
}

// Answered returns how many requests were answered since the start, and how long that took altogether. Watches and
// connections do not count.
func (s *Server) Answered() (count int64, took time.Duration) {
	return s.answered.Load(), time.Duration(s.answering.Load())
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1") // seconds that client-go waits
	http.Error(w, "the API server is starting or stopping", http.StatusServiceUnavailable)
}
