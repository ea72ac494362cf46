package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// The values of Listed.Status.
const (
	StatusOK = "ok"
	// StatusSoon means that the certificate expires within RenewBefore.
	StatusSoon  = "ends soon"
	StatusEnded = "ended"
)

// Listed is a certificate on disk.
type Listed struct {
	File    string `json:"file"`
	Subject string `json:"subject"`
	// Usage is what the certificate is for: CA, server or client.
	Usage []string `json:"usage"`
	// Names are the names and addresses of a server.
	Names    []string  `json:"names,omitempty"`
	Expires  time.Time `json:"expires"`
	DaysLeft int       `json:"daysLeft"`
	Status   string    `json:"status"`
}

// List returns the certificates in all files of a server or agent in a data directory.
// The error names each file that cannot be read; the list then has the others.
func List(dir datadir.Dir, now time.Time) ([]Listed, error) {
	listed := []Listed{}
	var faults []error
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist):
				return nil // an agent has none of a server's
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("%w; run it as root", err)
			case err != nil:
				return err
			case entry.IsDir() || filepath.Ext(path) != ".crt":
				return nil
			}
			certs, err := readCertificates(path)
			if err != nil {
				faults = append(faults, err)
			}
			for _, cert := range certs {
				listed = append(listed, list(path, cert, now))
			}
			return nil
		})
		if err != nil {
			faults = append(faults, fmt.Errorf("list certificates: %w", err))
		}
	}
	if len(listed) == 0 && len(faults) == 0 {
		return nil, fmt.Errorf("there are no certificates in %s: set --data-dir to the data directory of this kedge", string(dir))
	}
	return listed, errors.Join(faults...)
}

func list(path string, cert *x509.Certificate, now time.Time) Listed {
	l := Listed{
		File: path, Subject: cert.Subject.String(), Expires: cert.NotAfter,
		DaysLeft: int(cert.NotAfter.Sub(now) / (24 * time.Hour)), Status: StatusOK,
	}
	if cert.IsCA {
		l.Usage = append(l.Usage, "CA")
	}
	for _, usage := range cert.ExtKeyUsage {
		switch usage {
		case x509.ExtKeyUsageServerAuth:
			l.Usage = append(l.Usage, "server")
		case x509.ExtKeyUsageClientAuth:
			l.Usage = append(l.Usage, "client")
		}
	}
	names := sansOf(cert)
	l.Names = names.dns
	for _, ip := range names.ips {
		l.Names = append(l.Names, ip.String())
	}
	switch {
	case now.After(cert.NotAfter):
		l.Status = StatusEnded
	case now.Add(RenewBefore).After(cert.NotAfter):
		l.Status = StatusSoon
	}
	return l
}

// NamesOrUsage returns the certificate's names, or its usage if it has none, for people.
func (l Listed) NamesOrUsage() string {
	if len(l.Names) > 0 {
		return strings.Join(l.Names, ",")
	}
	return strings.Join(l.Usage, ",")
}
