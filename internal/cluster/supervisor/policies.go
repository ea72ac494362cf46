package supervisor

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/cluster/policystream"
)

// writePatience is how long a node may take to read an update.
const writePatience = time.Minute

// maxStreams is how many streams of policies a node may have. It needs one, and another one
// while it connects again.
const maxStreams = 4

// streams are the streams of policies that nodes have open.
type streams struct {
	mu sync.Mutex
	// open has functions that end them, by node, the oldest first.
	open map[string][]*context.CancelFunc
}

// begin notes a new stream of a node, and ends the oldest one if there are too many. The
// stream ends with the context, and the caller must call the function then.
func (s *streams) begin(ctx context.Context, node string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[string][]*context.CancelFunc{}
	}
	s.open[node] = append(s.open[node], &cancel)
	if len(s.open[node]) > maxStreams {
		(*s.open[node][0])()
		s.open[node] = s.open[node][1:]
	}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[node] = slices.DeleteFunc(s.open[node], func(c *context.CancelFunc) bool { return c == &cancel })
		if len(s.open[node]) == 0 {
			delete(s.open, node)
		}
	}
}

// policies tells a node what its pods are held to, until the node or the server ends the
// connection.
func (s *Supervisor) policies(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.cfg.Policies == nil && s.cfg.APIServers != nil:
		s.unavailable(w, errors.New("this server runs no API server"))
		return
	case s.cfg.Policies == nil:
		http.NotFound(w, r)
		return
	}
	stream := &policyWriter{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/x-ndjson")
	// The node learns at once that this server has the stream.
	if stream.control.Flush() != nil {
		return
	}
	var keeping sync.WaitGroup
	defer keeping.Wait()
	done := make(chan struct{})
	defer close(done)
	keeping.Go(func() {
		tick := time.NewTicker(policystream.KeepAlive)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if stream.keepAlive() != nil {
					return // the next update fails, too
				}
			case <-done:
				return
			}
		}
	})
	// Its error is about the connection: the node connects again.
	ctx, end := s.streams.begin(r.Context(), nodeOf(r))
	defer end()
	_ = s.cfg.Policies(ctx, nodeOf(r), stream.send)
}

// policyWriter writes updates, one at a time.
type policyWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu    sync.Mutex
	begun bool
	// active is that of the last update.
	active bool
}

func (p *policyWriter) send(update netpolicy.Update) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun, p.active = true, update.Active
	return p.write(update)
}

// keepAlive sends an update without changes, once there was one.
func (p *policyWriter) keepAlive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		return nil
	}
	return p.write(netpolicy.Update{Active: p.active})
}

func (p *policyWriter) write(update netpolicy.Update) error {
	// A node that does not read must not hold memory here for ever. The deadline must go
	// again: with HTTP/2 it ends the stream even if nothing is being written. Only writers
	// of tests know no deadline.
	_ = p.control.SetWriteDeadline(time.Now().Add(writePatience))
	defer func() { _ = p.control.SetWriteDeadline(time.Time{}) }()
	if err := policystream.Encode(p.w, update); err != nil {
		return err
	}
	return p.control.Flush()
}
