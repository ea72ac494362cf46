package requests

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// large returns a state with routes of a host name each, or of one host name.
func large(routes int, ownHosts bool) *routing.State {
	state := &routing.State{
		Sockets: map[string]*routing.Socket{"web": {PublicPort: 80, Listeners: []routing.Listener{{Name: "l", Protocol: routing.HTTP}}}},
		Routes:  map[string]*routing.Route{}, Backends: map[string]*routing.Backend{},
	}
	l := &state.Sockets["web"].Listeners[0]
	for i := range routes {
		name := fmt.Sprintf("route-%04d", i)
		r := &routing.Route{Name: name, Hostnames: []string{"example.org"}, Rules: []routing.Rule{to("/"+name, "b"), to("/"+name+"/deeper", "b")}}
		if ownHosts {
			r.Hostnames = []string{name + ".example.org"}
		}
		state.Routes[name] = r
		l.Routes = append(l.Routes, name)
	}
	state.Backends["b"] = &routing.Backend{Name: "b"}
	return state
}

// BenchmarkFind chooses one of 1,000 routes.
func BenchmarkFind(b *testing.B) {
	for _, ownHosts := range []bool{false, true} {
		b.Run(fmt.Sprintf("hosts=%t", ownHosts), func(b *testing.B) {
			requests := New(Config{})
			defer requests.Close()
			requests.Set(large(1000, ownHosts))
			host, _ := hosts.FromHeader("example.org")
			if ownHosts {
				host, _ = hosts.FromHeader("route-0777.example.org")
			}
			l, _ := requests.table.Load().sockets["web"].listeners.Best(host)
			header := http.Header{}
			for b.Loop() {
				parsed, _ := parsePath("/route-0777/deeper/than/that")
				q := question{path: parsed.match, method: http.MethodGet, header: header}
				if l.find(host, &q) == nil {
					b.Fatal("no match")
				}
			}
		})
	}
}

// BenchmarkSet changes the endpoints of one backend, and one route, of 1,000 routes.
func BenchmarkSet(b *testing.B) {
	state := large(1000, true)
	requests := New(Config{})
	defer requests.Close()
	requests.Set(state)
	b.Run("endpoints", func(b *testing.B) {
		for b.Loop() {
			next := *state
			next.Backends = map[string]*routing.Backend{"b": {Name: "b"}}
			requests.Set(&next)
		}
	})
	b.Run("route", func(b *testing.B) {
		for b.Loop() {
			changed := *state.Routes["route-0500"]
			state.Routes["route-0500"] = &changed
			requests.Set(state)
		}
	})
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			next := large(1000, true)
			b.StartTimer()
			requests.Set(next)
		}
	})
}

// BenchmarkServe is a request through the gateway to a backend on the same host.
func BenchmarkServe(b *testing.B) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }))
	defer backend.Close()
	state := large(1000, false)
	state.Backends["b"] = &routing.Backend{Name: "b", Endpoints: []netip.AddrPort{netip.MustParseAddrPort(backend.Listener.Addr().String())}}
	requests := New(Config{})
	defer requests.Close()
	requests.Set(state)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := httptest.NewRequest(http.MethodGet, "/route-0777/a", nil)
			r.Host = "example.org"
			recorder := httptest.NewRecorder()
			requests.Serve(recorder, r, "web")
			if recorder.Code != http.StatusOK {
				b.Fatal(recorder.Code)
			}
		}
	})
}
