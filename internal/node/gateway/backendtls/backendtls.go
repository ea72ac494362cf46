// Package backendtls makes the settings of TLS with the backends of a gateway. Package requests
// uses it for requests, and package sockets for streams.
package backendtls

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Key is by what connections to backends differ.
type Key [sha256.Size]byte

// KeyOf returns the same key for what makes the same settings.
func KeyOf(security *routing.BackendTLS, certificate *routing.Certificate) Key {
	text, _ := json.Marshal([]any{security, certificate}) // it never fails
	return sha256.Sum256(text)
}

// Config returns how a backend is asked to prove who it is. Faulty authorities trust nobody, and
// a faulty certificate is not shown. The certificate may be nil. The caller sets NextProtos.
func Config(security *routing.BackendTLS, certificate *routing.Certificate) *tls.Config {
	config := &tls.Config{ServerName: security.ServerName, MinVersion: tls.VersionTLS12}
	if security.Authorities != "" {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM([]byte(security.Authorities))
	}
	if certificate != nil {
		if pair, err := tls.X509KeyPair([]byte(certificate.Chain), []byte(certificate.Key)); err == nil {
			config.Certificates = []tls.Certificate{pair}
		}
	}
	switch {
	case security.Insecure:
		config.InsecureSkipVerify = true //nolint:gosec // the user asks for it
	case len(security.Names)+len(security.URIs) > 0:
		// The standard library checks only ServerName. VerifyConnection does all its checks, with
		// other names.
		config.InsecureSkipVerify = true //nolint:gosec // see above
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return verify(state.PeerCertificates, config.RootCAs, security)
		}
	}
	return config
}

var (
	errNoCertificate = errors.New("the backend has shown no certificate")
	errWrongName     = errors.New("the certificate of the backend has none of the wanted names")
)

// verify checks a chain of certificates, and that the first one has one of the names.
func verify(chain []*x509.Certificate, roots *x509.CertPool, security *routing.BackendTLS) error {
	if len(chain) == 0 {
		return errNoCertificate
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	leaf := chain[0]
	if _, err := leaf.Verify(options); err != nil {
		return err
	}
	for _, name := range security.Names {
		if leaf.VerifyHostname(name) == nil {
			return nil
		}
	}
	for _, uri := range leaf.URIs {
		if slices.Contains(security.URIs, uri.String()) {
			return nil
		}
	}
	return errWrongName
}
