package routing

// Part returns the part of a state that some of its sockets lead to: these, their routes, the
// backends of the routes, and the certificates of sockets and backends. It shares values with s.
func (s *State) Part(has func(socket string) bool) State {
	p := part{s, State{
		Sockets: map[string]*Socket{}, Routes: map[string]*Route{}, Backends: map[string]*Backend{}, Certificates: map[string]*Certificate{},
	}}
	for name, socket := range s.Sockets {
		if socket == nil || !has(name) {
			continue
		}
		p.made.Sockets[name] = socket
		for i := range socket.Listeners {
			p.listener(&socket.Listeners[i])
		}
	}
	return p.made
}

// part is a Part that is being made of a state.
type part struct {
	whole *State
	made  State
}

func (p *part) listener(l *Listener) {
	for _, name := range l.Certificates {
		p.certificate(name)
	}
	for _, name := range l.ChallengeCertificates {
		p.certificate(name)
	}
	for _, name := range l.Routes {
		route := p.whole.Routes[name]
		if route == nil || p.made.Routes[name] != nil {
			continue
		}
		p.made.Routes[name] = route
		p.split(route.Stream)
		for i := range route.Rules {
			p.filters(route.Rules[i].Filters)
			p.split(&route.Rules[i].Split)
		}
	}
}

func (p *part) split(s *Split) {
	if s == nil {
		return
	}
	for _, target := range s.Targets {
		p.filters(target.Filters)
		p.backend(target.Backend)
	}
}

func (p *part) filters(filters []Filter) {
	for _, f := range filters {
		if f.Mirror != nil {
			p.backend(f.Mirror.Backend)
		}
	}
}

func (p *part) backend(name string) {
	backend := p.whole.Backends[name]
	if backend == nil {
		return
	}
	p.made.Backends[name] = backend
	if backend.TLS != nil {
		p.certificate(backend.TLS.ClientCertificate)
	}
}

func (p *part) certificate(name string) {
	if certificate := p.whole.Certificates[name]; certificate != nil {
		p.made.Certificates[name] = certificate
	}
}
