package localapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// run runs a server, until the test ends or stop is called.
func run(t *testing.T, routes ...Route) (s *Server, c *Client, stop func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "folder", "s")
	s = New(socket, routes...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the end: %v", err)
		}
	})
	t.Cleanup(stop)
	<-s.listening
	return s, NewClient(socket), stop
}

// start runs a component until stop is called.
func start(t *testing.T, c component.Component) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- c.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the server of the socket ended: %v", err)
	}
	return func() error {
		cancel()
		return <-done
	}
}

// testPart is a Part.
type testPart struct {
	component.Component
	routes []Route
}

func (p testPart) Routes() []Route { return p.routes }

// idle does nothing.
func idle(name string) component.Component {
	return component.Step(name, func(context.Context) error { return nil })
}

// echo answers with the question.
func echo(_ context.Context, question string) (string, error) { return question, nil }

// all returns routes for the whole table, each of which answers with its name.
func all() (routes []Route) {
	for _, e := range Endpoints() {
		routes = append(routes, Answer(e, func(context.Context, Nothing) (string, error) { return e.String(), nil }))
	}
	return routes
}

// Each line of the table answers to its own method and path.
func TestTable(t *testing.T) {
	testutil.CheckLeaks(t)
	_, c, _ := run(t, all()...)
	known := map[string]bool{}
	for _, e := range Endpoints() {
		if known[e.String()] || !strings.HasPrefix(table[e].path, "/v1/") {
			t.Errorf("%s is twice in the table, or not below /v1", e)
		}
		known[e.String()] = true
		var answer string
		if err := c.ask(t.Context(), e, nil, &answer); err != nil || answer != e.String() {
			t.Errorf("%s: got %q, %v", e, answer, err)
		}
	}
}

// A request that does not fit the table is refused, and so is every user except root.
func TestRefusals(t *testing.T) {
	s := New("", all()...)
	self := uint32(os.Geteuid())
	for name, test := range map[string]struct {
		method, path string
		peer         uint32
		fault        error
		status       int
		message      string
	}{
		"answered":       {"GET", "/v1/status", self, nil, http.StatusOK, ""},
		"root":           {"GET", "/v1/status", 0, nil, http.StatusOK, ""},
		"other path":     {"GET", "/v1/statu", self, nil, http.StatusNotFound, "has no /v1/statu"},
		"below a path":   {"GET", "/v1/status/", self, nil, http.StatusNotFound, "has no /v1/status/"},
		"other method":   {"DELETE", "/v1/snapshots", self, nil, http.StatusMethodNotAllowed, "has no DELETE /v1/snapshots"},
		"another user":   {"GET", "/v1/status", self + 1, nil, http.StatusForbidden, "sudo"},
		"and wrong path": {"GET", "/", self + 1, nil, http.StatusForbidden, "sudo"},
		"unknown user":   {"GET", "/v1/status", 0, errors.New("who is it"), http.StatusForbidden, "who is it"},
	} {
		s.peer = func(net.Conn) (uint32, error) { return test.peer, test.fault }
		recorder := httptest.NewRecorder()
		recorder.Code = 0
		s.ServeHTTP(&final{recorder}, httptest.NewRequest(test.method, test.path, nil))
		if body := recorder.Body.String(); recorder.Code != test.status || !strings.Contains(body, test.message) {
			t.Errorf("%s: status %d, %s", name, recorder.Code, body)
		}
		if allow := recorder.Header().Get("Allow"); (allow == "GET, POST") != (test.status == http.StatusMethodNotAllowed) {
			t.Errorf("%s: Allow is %q", name, allow)
		}
	}
}

// final skips answers whose status is not final.
type final struct{ *httptest.ResponseRecorder }

func (f *final) WriteHeader(status int) {
	if status >= http.StatusOK {
		f.ResponseRecorder.WriteHeader(status)
	}
}

func TestAsk(t *testing.T) {
	testutil.CheckLeaks(t)
	_, c, stop := run(t, Answer(SetLogLevels, echo), Answer(LogLevels, func(context.Context, Nothing) ([]string, error) {
		return []string{"half"}, errors.New("the rest failed")
	}), Answer(Heap, func(context.Context, Nothing) (string, error) { return strings.Repeat("x", maxAnswer), nil }))
	if info, err := os.Stat(c.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Dir(c.socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v", info, err)
	}
	var answer string
	if err := c.ask(t.Context(), SetLogLevels, "question", &answer); err != nil || answer != "question" {
		t.Errorf("got %q, %v", answer, err)
	}
	if err := c.ask(t.Context(), SetLogLevels, 7, &answer); err == nil || !strings.Contains(err.Error(), "read the question") {
		t.Errorf("a question of another kind: %v", err)
	}
	if err := c.ask(t.Context(), SetLogLevels, strings.Repeat("x", maxQuestion), &answer); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a question that is too long: %v", err)
	}
	if err := c.ask(t.Context(), Heap, nil, &answer); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got error %v for an answer that is too long, want one with \"bytes\"", err)
	}
	if half, err := Ask[[]string](t.Context(), c, LogLevels, nil); err == nil || err.Error() != "the rest failed" || !slices.Equal(half, []string{"half"}) {
		t.Errorf("got answer %q, error %v, want the half that was done and the error \"the rest failed\"", half, err)
	}
	if err := c.ask(t.Context(), Status, nil, &answer); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "starting or stopping") {
		t.Errorf("what nobody answers: %v", err)
	}
	if err := c.ask(t.Context(), SaveSnapshot, nil, &answer); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "only a kedge server can do this") {
		t.Errorf("what nobody answers, or never: %v", err)
	}
	if second := New(c.socket); second.Run(t.Context()) == nil {
		t.Error("two listen")
	}
	stop()
	if err := c.ask(t.Context(), SetLogLevels, "question", &answer); !errors.Is(err, ErrNotRunning) {
		t.Errorf("ask after the stop: got %v, want %v", err, ErrNotRunning)
	}
}

// The routes of a part answer while it is ready, and it stops after the last answer.
func TestWith(t *testing.T) {
	testutil.CheckLeaks(t)
	s, c, stopServer := run(t)
	asked, stopped := make(chan struct{}), false
	part := component.Func("part", func(ctx context.Context, ready func()) error {
		if err := c.ask(ctx, Status, nil, new(string)); !errors.Is(err, ErrNotReady) {
			t.Errorf("before it is ready: %v", err)
		}
		ready()
		<-ctx.Done()
		stopped = true
		return nil
	})
	stop := start(t, s.With(testPart{part, []Route{Answer(SetLogLevels, echo), Answer(Status, func(ctx context.Context, _ Nothing) (string, error) {
		close(asked)
		<-ctx.Done()
		return fmt.Sprint(stopped), nil
	})}}))
	var answer string
	if err := c.ask(t.Context(), SetLogLevels, "question", &answer); err != nil || answer != "question" {
		t.Errorf("got %q, %v", answer, err)
	}
	answered := make(chan error, 1)
	go func() { answered <- c.ask(context.Background(), Status, nil, &answer) }()
	<-asked
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil || answer != "false" {
		t.Errorf("the part had stopped before the last answer: %q, %v", answer, err)
	}
	if err := c.ask(t.Context(), SetLogLevels, "question", &answer); !errors.Is(err, ErrNotReady) {
		t.Errorf("ask after the part has stopped: got %v, want %v", err, ErrNotReady)
	}

	t.Log("the same route of the next part")
	stop = start(t, s.With(testPart{idle("next"), []Route{Answer(SetLogLevels, echo)}}))
	if err := c.ask(t.Context(), SetLogLevels, "again", &answer); err != nil || answer != "again" {
		t.Errorf("got %q, %v", answer, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}

	t.Log("a part that fails while it answers")
	asked = make(chan struct{})
	failing := component.Func("failing", func(_ context.Context, ready func()) error {
		ready()
		<-asked
		return errors.New("no")
	})
	failed := make(chan error, 1)
	go func() {
		failed <- s.With(testPart{failing, []Route{Answer(SetLogLevels, func(ctx context.Context, _ string) (string, error) {
			close(asked)
			<-ctx.Done()
			return "failed", nil
		})}}).Run(context.Background(), func() {
			go func() { answered <- c.ask(context.Background(), SetLogLevels, "question", &answer) }()
		})
	}()
	if err := <-failed; err == nil || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
	if err := <-answered; err != nil || answer != "failed" {
		t.Errorf("its last answer: %q, %v", answer, err)
	}
	if err := c.ask(t.Context(), SetLogLevels, "question", &answer); !errors.Is(err, ErrNotReady) {
		t.Errorf("ask after the part has failed: got %v, want %v", err, ErrNotReady)
	}
	stopServer()
}

// Without a socket, parts with routes fail and say why.
func TestNoSocket(t *testing.T) {
	testutil.CheckLeaks(t)
	_, c, _ := run(t)
	s := New(c.socket)
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "stop the other kedge") {
		t.Errorf("got %v", err)
	}
	err := s.With(testPart{idle("part"), nil}).Run(t.Context(), func() { t.Error("it is ready") })
	if err == nil || !strings.Contains(err.Error(), "stop the other kedge") {
		t.Errorf("got %v", err)
	}
}

// A socket that a killed kedge has left is replaced.
func TestListenAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for range 2 {
		listener, err := Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "stop the other kedge") {
			t.Errorf("listen on the socket for the second time: got %v, want one that says to stop the other kedge", err)
		}
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		listener.Close()
		if err := NewClient(socket).ask(t.Context(), Status, nil, nil); !errors.Is(err, ErrNotRunning) {
			t.Errorf("a socket that was left: %v", err)
		}
	}
}

// TestExplained asks at a socket that is not a Server's, and at none.
func TestExplained(t *testing.T) {
	testutil.CheckLeaks(t)
	folder := t.TempDir()
	socket := filepath.Join(folder, "s")
	var refused error
	c := NewClient(socket)
	dial := c.dial
	c.dial = func(ctx context.Context) (net.Conn, error) {
		if refused != nil {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", refused)}
		}
		return dial(ctx)
	}
	says := func(name string, words ...string) {
		t.Helper()
		err := c.ask(t.Context(), Status, nil, new(string))
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q is not in: %v", name, word, err)
			}
		}
	}
	says("nobody", "kedge is not running on this host", "systemctl start kedge", "`kedge server`", "`kedge agent`")
	refused = syscall.EACCES
	says("a user who is not root", "only root", "sudo")
	refused = syscall.EAGAIN
	says("nobody accepts", "does not answer at "+socket, "systemctl restart kedge")
	refused = nil
	older, err := Listen(filepath.Join(folder, oldSocket))
	if err != nil {
		t.Fatal(err)
	}
	says("an older kedge", "an older kedge runs on this host", version.Version, "systemctl restart kedge")
	older.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.ask(ctx, Status, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// TestTold has kedges that take a question, and checks the message of the command for
// each.
func TestTold(t *testing.T) {
	for name, test := range map[string]struct {
		// answer writes the answer. The connection is closed after it.
		answer func(net.Conn)
		want   []string
	}{
		"silent": {func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, []string{"does not answer at /s", "systemctl restart kedge"}},
		"slow": {func(conn net.Conn) {
			fmt.Fprint(conn, "HTTP/1.1 102 Processing\r\n\r\n")
			time.Sleep(10 * patience)
			fmt.Fprint(conn, "HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\n{\"message\": \"late\"}")
		}, []string{"late"}},
		"ending": {func(net.Conn) {}, []string{"kedge stopped before it had answered"}},
		"of another version": {func(conn net.Conn) {
			fmt.Fprintf(conn, "HTTP/1.1 404 Not Found\r\n%s: v1.0\r\nConnection: close\r\n\r\n{\"message\": \"no\"}", versionHeader)
		}, []string{"has version v1.0 and does not know GET /v1/status", version.Version, "systemctl restart kedge"}},
		"something else": {func(conn net.Conn) {
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
		}, []string{"read the answer of kedge"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Client{"/s", func(context.Context) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
							t.Errorf("read request: %v", err)
						}
						test.answer(theirs)
					}()
					return ours, nil
				}}
				err := c.ask(t.Context(), Status, nil, new(string))
				for _, want := range test.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%q is not in: %v", want, err)
					}
				}
			})
		})
	}
}
