package sockets

import (
	"crypto/tls"
	"sync"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/backendtls"
)

// encryptions are the settings of TLS with the backends of streams. They are made when a
// connection needs them, because they are costly.
type encryptions struct {
	mu  sync.Mutex
	all map[*routing.BackendTLS]encryption
}

type encryption struct {
	certificate *routing.Certificate
	config      *tls.Config
}

// config returns the settings for a backend that wants TLS.
func (e *encryptions) config(backend *routing.Backend, state *routing.State) *tls.Config {
	certificate := state.Certificates[backend.TLS.ClientCertificate] // nil without a name
	e.mu.Lock()
	defer e.mu.Unlock()
	if found, ok := e.all[backend.TLS]; ok && found.certificate == certificate {
		return found.config
	}
	made := encryption{certificate, backendtls.Config(backend.TLS, certificate)}
	if e.all == nil {
		e.all = map[*routing.BackendTLS]encryption{}
	}
	e.all[backend.TLS] = made
	return made.config
}

// keep forgets the settings for what a state does not have. Connections that have found a backend
// in an earlier state add some of these again, which go with the next state.
func (e *encryptions) keep(state *routing.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) == 0 {
		return
	}
	used := map[*routing.BackendTLS]encryption{}
	for _, backend := range state.Backends {
		if backend == nil || backend.TLS == nil {
			continue
		}
		if found, ok := e.all[backend.TLS]; ok {
			used[backend.TLS] = found
		}
	}
	e.all = used
}
