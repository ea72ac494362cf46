package requests

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/backendtls"
	"github.com/kedge-dev/kedge/internal/node/gateway/dialing"
)

// avoidance is how long an endpoint is avoided after a connection to it has failed.
const avoidance = 5 * time.Second

// backend is what targets with the same name of a backend refer to. It lives as long as a
// state or a route has the name, and changes with each state.
type backend struct {
	// service is nil as long as no backend has the name.
	service atomic.Pointer[service]
}

// service is a backend at a time. It never changes, except for the counters of endpoints.
type service struct {
	// source and certificate are what the service was made of.
	source      *routing.Backend
	certificate *routing.Certificate
	endpoints   []*endpoint
	pool        *pool
}

// endpoint is an address of a backend. It stays when the endpoints beside it change.
type endpoint struct {
	address netip.AddrPort
	// host is the address as text.
	host string
	// token is by what clients of a session name the endpoint.
	token string
	// active is how many requests it has.
	active atomic.Int64
	// avoided is until when it gets no requests if there are others, in nanoseconds since 1970.
	avoided atomic.Int64
}

// newService makes a service. What it has in common with the one before stays: endpoints with
// their counters, and connections.
func newService(from *routing.Backend, certificate *routing.Certificate, before *service, dial dialing.Dial) *service {
	s := &service{source: from, certificate: certificate}
	known := map[netip.AddrPort]*endpoint{}
	if before != nil {
		for _, e := range before.endpoints {
			known[e.address] = e
		}
	}
	for _, address := range from.Endpoints {
		e := known[address]
		if e == nil {
			e = &endpoint{address: address, host: address.String(), token: token(from.Name, address)}
		}
		s.endpoints = append(s.endpoints, e)
	}
	key := backendtls.KeyOf(from.TLS, certificate)
	if before != nil && before.pool.key == key {
		s.pool = before.pool
	} else {
		s.pool = newPool(key, from.TLS, certificate, dial)
	}
	return s
}

// token returns a short hash of an endpoint. Every node of the cluster has the same one.
func token(backend string, address netip.AddrPort) string {
	sum := sha256.Sum256([]byte(backend + " " + address.String()))
	return hex.EncodeToString(sum[:8])
}

// byToken returns the endpoint with a token, or nil.
func (s *service) byToken(token string) *endpoint {
	for _, e := range s.endpoints {
		if e.token == token {
			return e
		}
	}
	return nil
}

// pick returns the endpoint for an attempt: of two random ones, that with fewer requests. It
// prefers those that are not avoided, and returns none of tried. It returns nil if there are no
// others.
func (s *service) pick(tried []*endpoint) *endpoint {
	return better(s.random(tried), s.random(tried), time.Now().UnixNano())
}

// better returns one of two endpoints, which may be the same or nil.
func better(a, b *endpoint, now int64) *endpoint {
	if a == nil || b == nil || a == b {
		return a
	}
	avoidA, avoidB := a.avoided.Load() > now, b.avoided.Load() > now
	if avoidA != avoidB {
		if avoidA {
			return b
		}
		return a
	}
	if b.active.Load() < a.active.Load() {
		return b
	}
	return a
}

// random returns a random endpoint that is not in tried. It looks for one that is not avoided.
func (s *service) random(tried []*endpoint) (found *endpoint) {
	count := len(s.endpoints)
	if count == 0 {
		return nil
	}
	now := time.Now().UnixNano()
	start := rand.IntN(count) //nolint:gosec // no secret
	for i := range count {
		e := s.endpoints[(start+i)%count]
		if slices.Contains(tried, e) {
			continue
		}
		if e.avoided.Load() <= now {
			return e
		}
		if found == nil {
			found = e
		}
	}
	return found
}

// avoid makes requests prefer other endpoints for a while.
func (e *endpoint) avoid() { e.avoided.Store(time.Now().Add(avoidance).UnixNano()) }
