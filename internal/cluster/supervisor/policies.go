package supervisor

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/cluster/policystream"
)

// writePatience is how long a node may take to read an update.
const writePatience = time.Minute

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
	_ = s.cfg.Policies(r.Context(), nodeOf(r), stream.send)
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
