// Package localapi connects commands with the kedge that runs on their host: JSON over
// HTTP on one socket, for root alone. routes.go lists the questions.
//
// The cli package makes the Clients, and one Server for each process, which answers from
// the start of the process to its end. The boot lists in packages server and agent add
// the routes of a part together with the part (Server.With).
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
	// maxQuestion is how many bytes a question may have. The longest one names all nodes
	// of a cluster.
	maxQuestion = 4 << 20
	// maxHeader is how many bytes the header of a request may have.
	maxHeader = 16 << 10
	// headerPatience is how long a caller may take to send the header.
	headerPatience = 10 * time.Second
	// versionHeader has the version of the kedge that answers.
	versionHeader = "Kedge-Version"
)

// Route is an endpoint with its handler.
type Route struct {
	Endpoint Endpoint
	handler  http.Handler
}

// Nothing is an empty question or answer.
type Nothing struct{}

// Answer makes the route of an endpoint from a function. If do returns an error, the
// caller also gets the answer, which has what was done in spite of it. The context ends
// when the caller goes away, and when the route's part must stop.
func Answer[Q, A any](e Endpoint, do func(ctx context.Context, question Q) (A, error)) Route {
	return Route{e, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var question Q
		// An empty question has no body.
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
	// Answer is what was done in spite of the error.
	Answer any `json:"answer,omitempty"`
}

func refuse(w http.ResponseWriter, status int, message string) {
	write(w, status, fault{Message: message})
}

func write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The only possible error is a client that went away.
	_ = json.NewEncoder(w).Encode(answer)
}

// Server answers commands on the socket.
type Server struct {
	socket string
	// peer returns the user at the other end of a connection.
	peer func(net.Conn) (uid uint32, err error)
	// listening is closed when the socket exists, and ended when Run returns err.
	listening, ended chan struct{}
	err              error

	mu sync.Mutex
	// answers has the handlers by endpoint, nil if no part answers now.
	answers [len(table)]*answering
}

// answering is a handler that answers at present.
type answering struct {
	handler http.Handler
	// until is done when the handler's part must stop. running counts the requests that
	// the handler is answering.
	until   context.Context
	running *sync.WaitGroup
}

// New makes a server of the socket. It answers routes as long as it runs.
func New(socket string, routes ...Route) *Server {
	s := &Server{socket: socket, peer: peerUser, listening: make(chan struct{}), ended: make(chan struct{})}
	s.open(context.Background(), new(sync.WaitGroup), routes)
	return s
}

// Run makes the socket and answers until ctx is done. It returns nil then, after all open
// requests are answered. It may be called only once.
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

// Part is a part of kedge that answers commands.
type Part interface {
	component.Component
	// Routes returns the routes that the part answers while it is ready.
	Routes() []Route
}

// With returns part with its routes. They are answered from when part is ready until it
// must stop. It stops after the last answer. If the server has no socket, the component
// fails.
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

// open answers routes until the context is done or close is called.
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

// close stops answering the routes that were opened with running.
func (s *Server) close(running *sync.WaitGroup, routes []Route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, route := range routes {
		if a := s.answers[route.Endpoint]; a != nil && a.running == running {
			s.answers[route.Endpoint] = nil
		}
	}
}

// take returns the handler of an endpoint, or nil if no part answers now. The caller must
// call running.Done after the answer.
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
	// This tells the client at once that the question has arrived, however long the
	// answer takes.
	w.WriteHeader(http.StatusProcessing)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(answering.until, cancel)()
	r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
	answering.handler.ServeHTTP(w, r.WithContext(ctx))
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// mayCall fails unless the caller is root, or the user that kedge runs as. That is the
// same for all routes. The modes of the socket and of its folder allow only the same
// users.
func (s *Server) mayCall(r *http.Request) error {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	uid, err := s.peer(conn)
	if err != nil {
		return fmt.Errorf("find the user who calls: %w", err)
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
		return 0, errors.New("the connection is not from a Unix socket of this host")
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
