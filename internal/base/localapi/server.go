// Package localapi is how commands ask the kedge that runs on their host: JSON over
// HTTP on one socket, for root alone. routes.go has the list of what they can ask.
//
// The cli package makes one Server for each process, which answers from its start to
// its end, and the Clients. The boot lists, server and agent, add the routes of a part
// together with the part (Server.With).
package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/version"
)

const (
	// maxQuestion is how many bytes a question may have: the longest one names all
	// nodes of a cluster.
	maxQuestion = 4 << 20
	// maxHeader is how many bytes the header of a request may have.
	maxHeader = 16 << 10
	// headerPatience is how long a caller may take to send the header.
	headerPatience = 10 * time.Second
	// versionHeader has the version of the kedge that answers.
	versionHeader = "Kedge-Version"
)

// Route is an endpoint and what answers it.
type Route struct {
	Endpoint Endpoint
	handler  http.Handler
}

// Nothing is a question or an answer that says nothing.
type Nothing struct{}

// Answer makes the route of an endpoint of a function. What do returns besides an error
// reaches the caller too: it is what was done all the same. The context ends when the
// caller goes away, and when the part of the route is to stop.
func Answer[Q, A any](e Endpoint, do func(ctx context.Context, question Q) (A, error)) Route {
	return Route{e, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var question Q
		// A question that says nothing has no body.
		if err := json.NewDecoder(r.Body).Decode(&question); err != nil && !errors.Is(err, io.EOF) {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("read the question: %v", err))
			return
		}
		answer, err := do(r.Context(), question)
		if err != nil {
			write(w, http.StatusInternalServerError, fault{err.Error(), answer})
			return
		}
		write(w, http.StatusOK, answer)
	})}
}

// fault is the body of an answer that is an error.
type fault struct {
	Message string `json:"message"`
	// Answer is what was done all the same.
	Answer any `json:"answer,omitempty"`
}

func refuse(w http.ResponseWriter, status int, message string) {
	write(w, status, fault{Message: message})
}

func write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The only error is a client that went away.
	_ = json.NewEncoder(w).Encode(answer)
}

// Server answers commands on the socket.
type Server struct {
	socket string
	// peer returns the user at the other end of a connection.
	peer func(net.Conn) (uid uint32, err error)
	// listening is closed when there is a socket, and ended when Run returns err.
	listening, ended chan struct{}
	err              error

	mu sync.Mutex
	// answers has the handlers by their endpoints; nil where nothing answers now.
	answers [len(table)]*answering
}

// answering is a handler that answers now.
type answering struct {
	handler http.Handler
	// until is done when the part of the handler is to stop, and running counts the
	// requests that the handler answers.
	until   context.Context
	running *sync.WaitGroup
}

// New makes a server of the socket, which answers routes for as long as it runs.
func New(socket string, routes ...Route) *Server {
	s := &Server{socket: socket, peer: peerUser, listening: make(chan struct{}), ended: make(chan struct{})}
	s.open(context.Background(), new(sync.WaitGroup), routes)
	return s
}

// Run makes the socket, and answers until ctx is done. It returns nil then, when all
// that was asked is answered. It runs once.
func (s *Server) Run(ctx context.Context) (err error) {
	defer func() {
		s.err = err
		close(s.ended)
	}()
	listener, err := Listen(s.socket)
	if err != nil {
		return err
	}
	close(s.listening)
	server := &http.Server{
		ReadHeaderTimeout: headerPatience,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		Handler: s,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
		_ = server.Shutdown(context.WithoutCancel(ctx))
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", s.socket, err)
	}
}

// Part is a part of kedge that commands ask.
type Part interface {
	component.Component
	// Routes returns what it answers while it is ready.
	Routes() []Route
}

// With returns part with its routes. They answer when part is ready, and no longer when
// it is to stop: it stops after the last answer. Without a socket it fails.
func (s *Server) With(part Part) component.Component {
	return component.Func(part.Name(), func(ctx context.Context, ready func()) error {
		select {
		case <-s.listening:
		case <-s.ended:
			return s.err
		case <-ctx.Done():
			return nil
		}
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		routes, answered := part.Routes(), sync.WaitGroup{}
		answering, end := context.WithCancel(ctx)
		finish := func() {
			s.close(&answered, routes)
			end()
			answered.Wait()
		}
		defer finish()
		stopping := context.AfterFunc(ctx, func() {
			finish()
			stop()
		})
		defer stopping()
		return part.Run(running, func() {
			s.open(answering, &answered, routes)
			ready()
		})
	})
}

// open has routes answered until the context is done or they are closed.
func (s *Server) open(until context.Context, running *sync.WaitGroup, routes []Route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, route := range routes {
		if until.Err() != nil {
			return
		}
		if s.answers[route.Endpoint] != nil {
			panic(fmt.Sprintf("two parts answer %s", route.Endpoint))
		}
		s.answers[route.Endpoint] = &answering{route.handler, until, running}
	}
}

// close has routes that were opened with running no longer answered.
func (s *Server) close(running *sync.WaitGroup, routes []Route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, route := range routes {
		if a := s.answers[route.Endpoint]; a != nil && a.running == running {
			s.answers[route.Endpoint] = nil
		}
	}
}

// take returns the handler of an endpoint, or nil if nothing answers now. The caller
// calls running.Done after the answer.
func (s *Server) take(e Endpoint) *answering {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answers[e]
	if a != nil {
		a.running.Add(1)
	}
	return a
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(versionHeader, version.Version)
	if err := s.mayCall(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error())
		return
	}
	endpoint, found, methods := find(r.Method, r.URL.Path)
	switch {
	case len(methods) == 0:
		refuse(w, http.StatusNotFound, "kedge "+version.Version+" has no "+r.URL.Path)
		return
	case !found:
		w.Header().Set("Allow", strings.Join(methods, ", "))
		refuse(w, http.StatusMethodNotAllowed, "kedge "+version.Version+" has no "+r.Method+" "+r.URL.Path)
		return
	}
	answering := s.take(endpoint)
	if answering == nil {
		refuse(w, http.StatusServiceUnavailable, endpoint.unready())
		return
	}
	defer answering.running.Done()
	// By this the client knows at once that somebody answers, however long that takes.
	w.WriteHeader(http.StatusProcessing)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(answering.until, cancel)()
	r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
	answering.handler.ServeHTTP(w, r.WithContext(ctx))
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// mayCall says who may call, which is the same for all routes: root, as whom kedge runs.
// The modes of the socket and its folder say the same.
func (s *Server) mayCall(r *http.Request) error {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	uid, err := s.peer(conn)
	if err != nil {
		return fmt.Errorf("find out who calls: %w", err)
	}
	if uid != 0 && int(uid) != os.Geteuid() {
		return errOnlyRoot
	}
	return nil
}

// peerUser asks the kernel for the user who opened a connection (SO_PEERCRED, unix(7)).
func peerUser(conn net.Conn) (uint32, error) {
	local, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("this is no connection of a socket of this host")
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var fault error
	err = raw.Control(func(fd uintptr) {
		credentials, fault = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, fault); err != nil {
		return 0, err
	}
	return credentials.Uid, nil
}
