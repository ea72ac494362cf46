package datastore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// TLS names the files with which kedge and a datastore of the user authenticate
// each other. Each may be empty.
type TLS struct {
	// CAFile contains the authorities that sign the datastore's certificate.
	CAFile string
	// CertFile and KeyFile are the client certificate that kedge shows. Both are
	// set or neither.
	CertFile, KeyFile string
}

// Config reads the files and returns the client's TLS configuration, or nil if
// there are no files.
func (t TLS) Config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	config := &tls.Config{}
	if t.CAFile != "" {
		text, err := datadir.ReadText(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("datastore-cafile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("datastore-cafile: %s has no certificate in PEM", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("only one of datastore-certfile and datastore-keyfile is set: set both, or neither")
	}
	if t.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("datastore-certfile and datastore-keyfile: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		// The files are read for each connection, because the user may renew them
		// while kedge runs.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}
