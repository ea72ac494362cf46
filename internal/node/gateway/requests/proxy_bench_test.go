package requests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// BenchmarkProxy is whole requests of 32 clients that keep their connections: through a server on
// loopback, the gateway, and a server as backend. The plain httputil.ReverseProxy is what to
// compare with: it does much less.
func BenchmarkProxy(b *testing.B) {
	for _, size := range []int{100, 100_000} {
		content := make([]byte, size)
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }))
		defer backend.Close()

		state := large(100, false)
		state.Backends["b"] = &routing.Backend{Name: "b", Endpoints: []netip.AddrPort{addressOf(backend)}}
		requests := New(Config{})
		defer requests.Close()
		requests.Set(state)

		target, err := url.Parse(backend.URL)
		if err != nil {
			b.Fatal(err)
		}
		transport := &http.Transport{MaxIdleConnsPerHost: maxIdle, DisableCompression: true}
		defer transport.CloseIdleConnections()
		for _, proxy := range []struct {
			name    string
			handler http.Handler
		}{
			{"gateway", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { requests.Serve(w, r, "web") })},
			{"ReverseProxy", &httputil.ReverseProxy{
				Transport:  transport,
				BufferPool: pooled{&requests.buffers},
				Rewrite: func(r *httputil.ProxyRequest) {
					r.SetURL(target)
					r.SetXForwarded()
				},
			}},
		} {
			b.Run(fmt.Sprintf("%s/%dB", proxy.name, size), func(b *testing.B) { ask32(b, proxy.handler, size) })
		}
	}
}

// ask32 has 32 clients send b.N requests to a handler.
func ask32(b *testing.B, handler http.Handler, size int) {
	server := httptest.NewServer(handler)
	defer server.Close()
	client := &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	// Other processes of the host change the time of a request, but hardly the work.
	before := processorTime(b)
	defer func() { b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op") }()
	var left atomic.Int64
	left.Store(int64(b.N))
	var working sync.WaitGroup
	for range 32 {
		working.Go(func() {
			for left.Add(-1) >= 0 {
				r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+"/route-0077/a", nil)
				if err != nil {
					b.Error(err)
					return
				}
				r.Host = "example.org"
				answer, err := client.RoundTrip(r)
				if err != nil {
					b.Error(err)
					return
				}
				n, err := io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if err != nil || int(n) != size || answer.StatusCode != http.StatusOK {
					b.Errorf("%d with %d bytes: %v", answer.StatusCode, n, err)
					return
				}
			}
		})
	}
	working.Wait()
}

// processorTime returns how long the process has worked, in nanoseconds.
func processorTime(b *testing.B) int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// pooled is an httputil.BufferPool.
type pooled struct{ buffers *sync.Pool }

func (p pooled) Get() []byte       { return p.buffers.Get().(*[copyBuffer]byte)[:] }
func (p pooled) Put(buffer []byte) { p.buffers.Put((*[copyBuffer]byte)(buffer)) }
