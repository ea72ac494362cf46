package requests

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// world is a gateway with one socket and its backends.
type world struct {
	*testing.T
	requests *Requests
	server   *httptest.Server
	state    *routing.State

	mu      sync.Mutex
	entries []Entry
}

// echo is what a backend says about a request.
type echo struct {
	Backend, Method, Host, URI, Proto, Body string
	Header                                  http.Header
	Trailer                                 http.Header
}

// newWorld returns a gateway that listens for all host names by HTTP.
func newWorld(t *testing.T, routes ...*routing.Route) *world {
	t.Helper()
	testutil.CheckLeaks(t)
	w := &world{T: t}
	w.requests = New(Config{AccessLog: func(e *Entry) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.entries = append(w.entries, *e)
	}})
	t.Cleanup(w.requests.Close)
	w.state = &routing.State{
		Sockets:  map[string]*routing.Socket{"web": {PublicPort: 80, AccessLog: true, Listeners: []routing.Listener{{Name: "all", Protocol: routing.HTTP}}}},
		Routes:   map[string]*routing.Route{},
		Backends: map[string]*routing.Backend{},
	}
	for _, r := range routes {
		w.add(r, &w.state.Sockets["web"].Listeners[0])
	}
	w.set()
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Serve(rw, r, "web")
	}))
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	w.server.Config.Protocols = &protocols
	w.server.Start()
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) add(r *routing.Route, to *routing.Listener) {
	w.state.Routes[r.Name] = r
	to.Routes = append(to.Routes, r.Name)
}

// set makes the gateway serve a copy of the state.
func (w *world) set() {
	state := *w.state
	state.Sockets = map[string]*routing.Socket{}
	for name, socket := range w.state.Sockets {
		copied := *socket
		state.Sockets[name] = &copied
	}
	w.requests.Set(&state)
}

// backend starts a backend with a handler, or one that tells what it gets. It has one endpoint.
func (w *world) backend(name string, handler http.HandlerFunc) *httptest.Server {
	w.Helper()
	if handler == nil {
		handler = echoing(name)
	}
	server := w.unlisted(handler)
	w.state.Backends[name] = &routing.Backend{Name: name, Endpoints: []netip.AddrPort{addressOf(server)}}
	w.set()
	return server
}

// unlisted starts a server that is no endpoint of a backend yet.
func (w *world) unlisted(handler http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols = &protocols
	server.Start()
	w.Cleanup(server.Close)
	return server
}

func addressOf(server *httptest.Server) netip.AddrPort {
	return netip.MustParseAddrPort(server.Listener.Addr().String())
}

// echoing answers with what comes.
func echoing(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", name)
		_ = json.NewEncoder(w).Encode(echo{name, r.Method, r.Host, r.RequestURI, r.Proto, string(body), r.Header, r.Trailer})
	}
}

// deadAddress returns an address that refuses connections.
func deadAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// answer is what a client gets.
type answer struct {
	*http.Response
	text string
	echo echo
}

// ask sends a request. Headers are given as "Name: value", and the host as "Host: name".
func (w *world) ask(method, path string, headers ...string) answer {
	w.Helper()
	return w.send(method, path, nil, headers...)
}

func (w *world) send(method, path string, body io.Reader, headers ...string) answer {
	w.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, w.server.URL, body)
	if err != nil {
		w.Fatal(err)
	}
	request.URL.Opaque = path
	if strings.HasPrefix(path, "//") {
		request.URL.Opaque, request.URL.Path = "", path
	}
	request.Host = "example.org"
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			request.Host = value
			continue
		}
		request.Header.Add(name, value)
	}
	return w.do(request)
}

func (w *world) do(request *http.Request) answer {
	w.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		w.Fatalf("%s %s: %v", request.Method, request.URL, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatalf("%s %s: %v", request.Method, request.URL, err)
	}
	a := answer{Response: response, text: string(text)}
	_ = json.Unmarshal(text, &a.echo)
	return a
}

// raw sends bytes, and returns the status of the answer.
func (w *world) raw(text string) (status int) {
	w.Helper()
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		w.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.Fatalf("%q: %v", text, err)
	}
	response.Body.Close()
	return response.StatusCode
}

// to returns a rule that sends everything below a path to backends.
func to(path string, backends ...string) routing.Rule {
	r := routing.Rule{Matches: []routing.Match{{PathType: routing.PathPrefix, Path: path}}}
	for _, name := range backends {
		r.Targets = append(r.Targets, routing.Target{Backend: name, Weight: 1})
	}
	return r
}

func with(r routing.Rule, change func(*routing.Rule)) routing.Rule {
	change(&r)
	return r
}

// record answers a request without a server.
func (w *world) record(r *http.Request) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	w.requests.Serve(recorder, r, "web")
	return recorder
}

// secured makes a request one of a connection with TLS, whose client has shown a certificate of
// the authorities.
func secured(r *http.Request, serverName, authorities string) *http.Request {
	name, is := hosts.FromServerName(serverName)
	if !is {
		panic(serverName + " is no server name")
	}
	var handshake hosts.Handshake
	handshake.Decide(hosts.Shown{Name: name, Authorities: authorities})
	r.TLS = &tls.ConnectionState{ServerName: serverName}
	return r.WithContext(handshake.In(r.Context()))
}
