// Follows k8s.io/apiserver v0.37.2, pkg/server/dynamiccertificates/named_certificates.go.

package apiserver

import (
	"crypto/tls"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// match returns the provider's certificate if it is for name, or nil. As in
// upstream's BuildNamedCertificates, names that the user lists replace the names in
// the certificate.
//
//upstream:follows k8s.io/apiserver/pkg/server/dynamiccertificates/named_certificates.go DynamicServingCertificateController.BuildNamedCertificates getCertificateNames
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

// matchesName tells whether a server name matches a pattern, which may start with "*.".
func matchesName(pattern, name string) bool {
	if strings.EqualFold(pattern, name) {
		return true
	}
	_, parent, found := strings.Cut(name, ".")
	return found && strings.EqualFold(pattern, "*."+parent)
}
