package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// linger is how long the parts stay after the last socket is gone. Until then, its
// connections have ended, and a Gateway that is only made anew finds its parts.
const linger = 2 * time.Minute

// Requests answers HTTP requests. It is *requests.Requests, or a fake in tests.
type Requests interface {
	// Set changes what is served. What is the same pointer as before has not changed.
	Set(state *routing.State)
	// Close ends what goes on without a request. Nothing is called after it.
	Close()
}

// Sockets listens. It is *sockets.Sockets, or a fake in tests.
type Sockets interface {
	// Set changes which sockets there are. They are open when it returns. It may be called before Run.
	Set(state *routing.State)
	// Run waits until ctx ends, and closes the sockets. It returns when they and all of their
	// connections are closed. It is called once.
	Run(ctx context.Context)
	// Drain asks clients to connect elsewhere. The sockets stay open.
	Drain()
	// Listening returns the sockets that are open, as PORT/TRANSPORT.
	Listening() []string
	// Changes receives when Listening may return something else.
	Changes() <-chan struct{}
}

// serving gives the state of the stream to the parts, which run while there are sockets.
type serving struct {
	parts func() (Requests, Sockets)
	// changed is called when listening may return something else.
	changed func()

	mu      sync.Mutex
	state   *routing.State
	running *running // nil without sockets
	// idle is the timer that ends the parts, or nil while there are sockets.
	idle *time.Timer
}

// running is the parts while they run.
type running struct {
	requests Requests
	sockets  Sockets
	cancel   context.CancelFunc
	ended    sync.WaitGroup
}

// apply takes an update over. It never fails: what the parts cannot serve, they leave out.
func (s *serving) apply(update routing.Update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.state.With(update)
	if now == s.state {
		return nil // after a new connection to a server, most likely
	}
	s.state = now
	wanted := len(now.Sockets) > 0
	if wanted && s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	if s.running == nil {
		if !wanted {
			return nil
		}
		s.running = s.startLocked()
	} else if !wanted && s.idle == nil {
		s.idle = time.AfterFunc(linger, s.endIdle)
	}
	// Requests of a new socket find their routes.
	s.running.requests.Set(now)
	s.running.sockets.Set(now)
	return nil
}

// startLocked runs the parts.
func (s *serving) startLocked() *running {
	// They outlive the context of the stream, and end by stop.
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel}
	r.requests, r.sockets = s.parts()
	r.ended.Go(func() {
		r.sockets.Run(ctx)
		r.requests.Close()
	})
	r.ended.Go(func() {
		for {
			select {
			case <-r.sockets.Changes():
				s.changed()
			case <-ctx.Done():
				return
			}
		}
	})
	return r
}

// endIdle ends the parts if there are no sockets.
func (s *serving) endIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil && len(s.state.Sockets) == 0 {
		s.endLocked()
	}
}

// stop ends the parts. Nothing is applied after it.
func (s *serving) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

// endLocked ends the parts and waits for that, because new ones would have metrics of the same
// names.
func (s *serving) endLocked() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	if s.running != nil {
		s.running.cancel()
		s.running.ended.Wait()
		s.running = nil
		s.changed()
	}
}

// drain asks clients to connect elsewhere.
func (s *serving) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.sockets.Drain()
	}
}

// listening returns the ports that are open.
func (s *serving) listening() []gateways.Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	var ports []gateways.Port
	for _, text := range s.running.sockets.Listening() {
		// Sockets writes ports in this form.
		if port, err := gateways.ParsePort(text); err == nil {
			ports = append(ports, port)
		}
	}
	return ports
}
