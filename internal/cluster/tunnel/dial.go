package tunnel

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// dialTimeout bounds a dial on the node. Pods and kubelet are near.
const dialTimeout = 10 * time.Second

// dialer is the agent's end of one tunnel: the handler of its CONNECT requests.
type dialer struct {
	targets *targets
	// mesh serves the stream of the mesh. It is nil if the pods' network is another one.
	mesh func(context.Context, io.ReadWriteCloser) error

	mu       sync.Mutex
	ended    bool
	handlers sync.WaitGroup
}

// ServeHTTP connects a stream with its target, until either end closes.
func (d *dialer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.begin() {
		return
	}
	defer d.handlers.Done()
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served here", http.StatusMethodNotAllowed)
		return
	}
	if r.Host == meshTarget && d.mesh != nil {
		stream := &meshStream{flushed{w, http.NewResponseController(w)}, r.Body}
		if stream.Flush() == nil {
			_ = d.mesh(r.Context(), stream)
		}
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	address, err := d.targets.resolve(ctx, r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	stream := &flushed{w, http.NewResponseController(w)}
	if err := stream.Flush(); err != nil {
		_ = conn.Close()
		return
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		_, _ = io.Copy(conn, r.Body)
		_ = conn.Close()
	})
	_, _ = io.Copy(stream, conn)
	_ = r.Body.Close()
	sending.Wait()
}

// meshStream is a stream of the mesh.
type meshStream struct {
	flushed
	body io.ReadCloser
}

func (s *meshStream) Read(p []byte) (int, error) { return s.body.Read(p) }
func (s *meshStream) Close() error               { return s.body.Close() }

// begin counts a handler, unless the tunnel has ended.
func (d *dialer) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.handlers.Add(1)
	}
	return !d.ended
}

// end waits until the last handler has ended. The caller must have closed the tunnel.
func (d *dialer) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.handlers.Wait()
}

// flushed sends what is written to it at once.
type flushed struct {
	w io.Writer
	*http.ResponseController
}

func (f *flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.Flush()
	}
	return n, err
}
