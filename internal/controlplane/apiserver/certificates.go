package apiserver

import (
	"crypto/tls"
)

// Certificate returns the certificate that the user's tls-sni-cert-key has for the
// server name. It returns nil if there is none: the supervisor then uses its own.
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
