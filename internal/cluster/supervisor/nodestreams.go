package supervisor

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
)

// writePatience is how long a node may take to read an update.
const writePatience = time.Minute

// maxStreams is how many streams of one kind a node may have. It needs one, and another one
// while it connects again.
const maxStreams = 4

// streams are the streams that nodes have open.
type streams struct {
	mu sync.Mutex
	// open has functions that end them, the oldest first.
	open map[streamKey][]*context.CancelFunc
}

// streamKey is a node and the path of a kind of streams.
type streamKey struct{ path, node string }

// begin notes a new stream of a node, and ends the oldest one of this kind if there are too
// many. The stream ends with the context, and the caller must call the function then.
func (s *streams) begin(ctx context.Context, path, node string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	key := streamKey{path, node}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[streamKey][]*context.CancelFunc{}
	}
	s.open[key] = append(s.open[key], &cancel)
	if len(s.open[key]) > maxStreams {
		(*s.open[key][0])()
		s.open[key] = s.open[key][1:]
	}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[key] = slices.DeleteFunc(s.open[key], func(c *context.CancelFunc) bool { return c == &cancel })
		if len(s.open[key]) == 0 {
			delete(s.open, key)
		}
	}
}

// nodeStream returns the handler of a kind of streams. It sends a node what watch has for
// it, until the node or the server ends the connection. watch is nil if this server does not
// know.
func nodeStream[U any](s *Supervisor, kind nodestream.Kind[U], watch func(ctx context.Context, node string, send func(U) error) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case watch == nil && s.cfg.APIServers != nil:
			s.unavailable(w, errors.New("this server runs no API server"))
			return
		case watch == nil:
			http.NotFound(w, r)
			return
		}
		stream := &updateWriter[U]{kind: kind, w: w, control: http.NewResponseController(w)}
		w.Header().Set("Content-Type", "application/x-ndjson")
		// The node learns at once that this server has the stream.
		if stream.control.Flush() != nil {
			return
		}
		var keeping sync.WaitGroup
		defer keeping.Wait()
		done := make(chan struct{})
		defer close(done)
		keeping.Go(func() { stream.keepAlive(done) })
		// Its error is about the connection: the node connects again.
		ctx, end := s.streams.begin(r.Context(), kind.Path, nodeOf(r))
		defer end()
		_ = watch(ctx, nodeOf(r), stream.send)
	})
}

// updateWriter writes updates, one at a time.
type updateWriter[U any] struct {
	kind    nodestream.Kind[U]
	w       http.ResponseWriter
	control *http.ResponseController

	mu    sync.Mutex
	begun bool
	// still is an update without changes that may follow the last one.
	still U
}

func (u *updateWriter[U]) send(update U) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.begun, u.still = true, u.kind.Still(update)
	return u.write(update)
}

// keepAlive sends an update without changes from time to time, until done is closed.
func (u *updateWriter[U]) keepAlive(done <-chan struct{}) {
	tick := time.NewTicker(nodestream.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if u.sendStill() != nil {
				return // the next update fails, too
			}
		case <-done:
			return
		}
	}
}

// sendStill sends an update without changes, once there was one.
func (u *updateWriter[U]) sendStill() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.begun {
		return nil
	}
	return u.write(u.still)
}

func (u *updateWriter[U]) write(update U) error {
	// A node that does not read must not hold memory here for ever. The deadline must go
	// again: with HTTP/2 it ends the stream even if nothing is being written. Only writers
	// of tests know no deadline.
	_ = u.control.SetWriteDeadline(time.Now().Add(writePatience))
	defer func() { _ = u.control.SetWriteDeadline(time.Time{}) }()
	if err := nodestream.Encode(u.w, update); err != nil {
		return err
	}
	return u.control.Flush()
}
