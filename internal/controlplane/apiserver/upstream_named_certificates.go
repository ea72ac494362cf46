// Follows k8s.io/apiserver v0.36.3, pkg/server/dynamiccertificates/named_certificates.go.

package apiserver

import (
	"crypto/tls"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// match returns the provider's certificate if it is for name. Its own list of
// names goes before those in the certificate, as upstream has it
// (apiserver/pkg/server/dynamiccertificates/named_certificates.go).
func match(provider dynamiccertificates.SNICertKeyContentProvider, name string) (*tls.Certificate, error) {
	names := provider.SNINames()
	listed := false
	for _, pattern := range names {
		listed = listed || matchesName(pattern, name)
	}
	if len(names) > 0 && !listed {
		return nil, nil
	}
	certificate, err := tls.X509KeyPair(provider.CurrentCertKeyContent())
	if err != nil {
		return nil, fmt.Errorf("load certificate of %s: %w", provider.Name(), err)
	}
	if !listed && certificate.Leaf.VerifyHostname(name) != nil {
		return nil, nil
	}
	return &certificate, nil
}

// matchesName compares a server name with one that may start with *.
func matchesName(pattern, name string) bool {
	if strings.EqualFold(pattern, name) {
		return true
	}
	_, parent, found := strings.Cut(name, ".")
	return found && strings.EqualFold(pattern, "*."+parent)
}
