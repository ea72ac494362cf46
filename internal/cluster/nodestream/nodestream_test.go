package nodestream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// serve runs a server over TLS, with HTTP/2, and returns a client of it.
func serve(t *testing.T, handler http.HandlerFunc) *rest.Config {
	t.Helper()
	testutil.CheckLeaks(t)
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, Transport: server.Client().Transport}
}

// TestFrom has servers that answer in all kinds of ways.
func TestFrom(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		status int
		answer string
		want   string
	}{
		"two updates":           {200, `{"whole":true,"active":true}` + "\n" + `{"active":true}` + "\n" + `{"active":true,"pods":{"a/b":null}}` + "\n", "EOF"},
		"an older server":       {404, "", "Upgrade all servers"},
		"a server that starts":  {503, "", "503"},
		"a stranger":            {401, "", "401"},
		"another place":         {302, "", "302"},
		"no JSON":               {200, "hello\n", "decode update"},
		"no line":               {200, `{"whole":true}`, "unexpected EOF"},
		"not whole":             {200, `{"active":true,"pods":{"a/b":null}}` + "\n", "not whole"},
		"a name with a command": {200, `{"whole":true,"sets":{"a; flush ruleset":{}}}` + "\n", "refuse update"},
		"what cannot be done":   {200, `{"whole":true,"groups":{"g":null}}` + "\n", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != PoliciesPath || r.ProtoMajor != 2 {
					t.Errorf("got %s %s", r.Proto, r.URL)
				}
				if test.status == 302 {
					w.Header().Set("Location", "https://example.com")
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.answer)
			})
			var applied []netpolicy.Update
			err := Policies().From(client)(t.Context(), func(u netpolicy.Update) error {
				if u.Groups != nil {
					return refused
				}
				applied = append(applied, u)
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			if want := map[string]int{"two updates": 2}[name]; len(applied) != want {
				t.Errorf("applied %v", applied)
			}
		})
	}
}

// TestKeep has a stream that breaks again and again. Each connection begins with a whole
// update.
func TestKeep(t *testing.T) {
	var connections atomic.Int32
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := connections.Add(1)
		_ = Encode(w, netpolicy.Update{Whole: true, Active: n > 1})
		if n > 2 {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var applied []netpolicy.Update
	err := Policies().Keep(Policies().From(client))(ctx, func(u netpolicy.Update) error {
		if applied = append(applied, u); len(applied) == 3 {
			cancel()
		}
		return nil
	})
	if err != nil || len(applied) != 3 || applied[0].Active || !applied[2].Active || !applied[2].Whole {
		t.Errorf("got %v, applied %v", err, applied)
	}
}

// TestReports has a server that refuses the node, and then accepts it.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accepts atomic.Bool
		stream := Stream[netpolicy.Update](func(ctx context.Context, apply func(netpolicy.Update) error) error {
			if !accepts.Load() {
				return errors.New("ask a server for the policies: it answers 401 Unauthorized")
			}
			if err := apply(netpolicy.Update{Whole: true}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		var group component.Group
		group.Add(component.Func("policy", func(ctx context.Context, ready func()) error {
			ready()
			return Policies().Keep(stream)(ctx, func(netpolicy.Update) error { return nil })
		}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- group.Run(ctx) }()
		time.Sleep(time.Minute)
		if fault := group.Status()[0].Fault; !strings.Contains(fault, "401 Unauthorized") {
			t.Errorf("the component reports %q", fault)
		}
		accepts.Store(true)
		time.Sleep(time.Minute)
		if fault := group.Status()[0].Fault; fault != "" {
			t.Errorf("the component still reports %q", fault)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPatience: Keep says once that a server has no stream, and tries slowly. It tries sooner
// after other faults. It is a warning, unless the server may be right.
func TestPatience(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		keep        func(ctx context.Context, attempt func() error)
		least, most int
		level       logrus.Level
	}{
		"policies of an older server": {attempts(Policies(), errNoPolicies), 59, 61, logrus.WarnLevel},
		"routes of an older server":   {attempts(Routes(), errNoRoutes), 59, 61, logrus.InfoLevel},
		"orders of an older server":   {attempts(Orders(), errNoOrders), 59, 61, logrus.InfoLevel},
		"policies that break":         {attempts(Policies(), broken), 200, 400, logrus.WarnLevel},
		"routes that break":           {attempts(Routes(), broken), 200, 400, logrus.WarnLevel},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said := logrustest.NewLocal(logrus.StandardLogger())
				defer said.Reset()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				count := 0
				test.keep(ctx, func() error { count++; return nil })
				if count < test.least || count > test.most {
					t.Errorf("%d attempts", count)
				}
				if entries := said.AllEntries(); len(entries) != 1 || entries[0].Level != test.level {
					t.Errorf("it said %v", entries)
				}
			})
		})
	}
}

// attempts returns a function that keeps a stream that fails again and again.
func attempts[U any](kind Kind[U], cause error) func(context.Context, func() error) {
	return func(ctx context.Context, attempt func() error) {
		_ = kind.Keep(func(context.Context, func(U) error) error { return errors.Join(attempt(), cause) })(ctx, nil)
	}
}

// TestUpgrade has a server that is older than the node, and is then upgraded.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := logrustest.NewLocal(logrus.StandardLogger())
		defer said.Reset()
		upgraded := time.Now().Add(10*without + without/2)
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			if time.Now().Before(upgraded) {
				return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"whole":true,"active":true}` + "\n"))}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		kept := Policies().Keep(Policies().From(&rest.Config{Host: "https://x", Transport: transport}))
		err := kept(ctx, func(u netpolicy.Update) error {
			if late := time.Since(upgraded); !u.Whole || late > without {
				t.Errorf("got %v %s after the upgrade", u, late)
			}
			cancel()
			return nil
		})
		if entries := said.AllEntries(); err != nil || len(entries) != 1 || !strings.Contains(entries[0].Message, "Upgrade all servers") {
			t.Errorf("got %v, and it said %d things", err, len(entries))
		}
	})
}

// TestSilence has a server that answers and then says nothing.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			reader, writer := io.Pipe()
			go func() {
				_ = Encode(writer, netpolicy.Update{Whole: true})
				for range 5 {
					time.Sleep(KeepAlive)
					_ = Encode(writer, netpolicy.Update{})
				}
				<-r.Context().Done()
				_ = writer.CloseWithError(r.Context().Err())
			}()
			return &http.Response{StatusCode: 200, Body: reader}, nil
		})
		applied := 0
		err := Policies().From(&rest.Config{Host: "https://x", Transport: transport})(t.Context(), func(netpolicy.Update) error { applied++; return nil })
		if took := time.Since(began); err == nil || took != 5*KeepAlive+silence || applied != 1 {
			t.Errorf("after %s and %d updates: %v", took, applied, err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestLongLine limits what a server can make a node keep in memory.
func TestLongLine(t *testing.T) {
	d := Policies().NewDecoder(endless{})
	d.limit = 1 << 20
	if _, err := d.Next(); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestDecoder sends updates of which one is longer than the buffer.
func TestDecoder(t *testing.T) {
	long := netpolicy.Update{Whole: true, Active: true, Sets: map[string]*netpolicy.Change{"s": {}}}
	for i := range 2000 {
		long.Sets["s"].Add = append(long.Sets["s"].Add, netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}))
	}
	var text strings.Builder
	sent := []netpolicy.Update{long, {Active: true, Sets: map[string]*netpolicy.Change{"s": nil}}, {}}
	for _, u := range sent {
		if err := Encode(&text, u); err != nil {
			t.Fatal(err)
		}
	}
	d := Policies().NewDecoder(strings.NewReader(text.String()))
	for _, want := range sent {
		if got, err := d.Next(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
	}
	if _, err := d.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestRoutes has a server that tells a node its routes, and changes one of them.
func TestRoutes(t *testing.T) {
	first := routing.State{Routes: map[string]*routing.Route{"a": {Name: "a"}, "b": {Name: "b"}}}
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != RoutesPath {
			t.Errorf("got %s", r.URL)
		}
		for _, update := range []routing.Update{{Whole: true, State: first}, Routes().Still(routing.Update{Whole: true}), {State: routing.State{Routes: map[string]*routing.Route{"a": nil}}}} {
			_ = Encode(w, update)
		}
	})
	var state *routing.State
	count := 0
	err := Routes().From(client)(t.Context(), func(u routing.Update) error {
		count++
		state = state.With(u)
		return nil
	})
	if !errors.Is(err, io.EOF) || count != 2 || len(state.Routes) != 1 || state.Routes["b"] == nil {
		t.Errorf("got %v, %d updates and %v", err, count, state)
	}
}

// TestOrders has a server that orders a node to upgrade, says so again, and takes it back. The
// node hears of each, and not of what no server says.
func TestOrders(t *testing.T) {
	order := upgrades.Order{ID: "1", Version: "v1.37.3+kedge.1", SHA256: strings.Repeat("0a", 32), Size: 1 << 20}
	wrong := order
	wrong.SHA256 = "../../etc/passwd"
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != OrdersPath {
			t.Errorf("got %s", r.URL)
		}
		for _, update := range []upgrades.Order{order, Orders().Still(order), {}, wrong, order} {
			_ = Encode(w, update)
		}
	})
	var got []upgrades.Order
	err := Orders().From(client)(t.Context(), func(o upgrades.Order) error {
		got = append(got, o)
		return nil
	})
	if want := []upgrades.Order{order, order, {}}; err == nil || !strings.Contains(err.Error(), "SHA-256") || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}
