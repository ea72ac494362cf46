package apiserver

import (
	"crypto/tls"
)

// Certificate returns the certificate for a server name that is the API
// server's own, by the user's tls-sni-cert-key. It returns nil for any other,
// which the supervisor has its own certificate for.
func (s *Server) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.RLock()
	certificates := s.certificates
	s.mu.RUnlock()
	if hello.ServerName == "" {
		return nil, nil
	}
	for _, provider := range certificates {
		certificate, err := match(provider, hello.ServerName)
		if certificate != nil || err != nil {
			return certificate, err
		}
	}
	return nil, nil
}
