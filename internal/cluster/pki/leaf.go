package pki

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/util/keyutil"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	leafValidity = 365 * 24 * time.Hour
	// RenewBefore is how long before it expires a leaf is renewed, unless its whole life
	// is shorter than four times that.
	RenewBefore = 90 * 24 * time.Hour
)

// leaf is a certificate that one of kedge's authorities signs, with everything that has
// to be in it.
type leaf struct {
	certFile, keyFile string
	signer            *authority
	subject           pkix.Name
	usage             []x509.ExtKeyUsage
	// names are the names and addresses of a server, none for a client.
	names func() sans
	// due is when the leaf is to be renewed; zero if a renewal would gain nothing.
	due time.Time
}

// renewFrom returns when a certificate is to be renewed.
func renewFrom(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-min(RenewBefore, cert.NotAfter.Sub(cert.NotBefore)/4))
}

// sans are the subject alternative names of a certificate, sorted.
type sans struct {
	dns []string
	ips []netip.Addr
}

// splitNames sorts names and addresses into sans, without duplicates.
func splitNames(names []string, addresses []netip.Addr) sans {
	var s sans
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil {
			addresses = append(slices.Clip(addresses), ip)
		} else if name != "" {
			s.dns = append(s.dns, name)
		}
	}
	for _, ip := range addresses {
		if ip.IsValid() {
			s.ips = append(s.ips, ip.Unmap().WithZone(""))
		}
	}
	slices.Sort(s.dns)
	s.dns = slices.Compact(s.dns)
	slices.SortFunc(s.ips, netip.Addr.Compare)
	s.ips = slices.Compact(s.ips)
	return s
}

// sansOf reads the names out of a certificate.
func sansOf(cert *x509.Certificate) sans {
	var ips []netip.Addr
	for _, ip := range cert.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			ips = append(ips, a)
		}
	}
	return splitNames(cert.DNSNames, ips)
}

func (s sans) equal(other sans) bool {
	return slices.Equal(s.dns, other.dns) && slices.Equal(s.ips, other.ips)
}

// ensure makes sure that the leaf's files hold a good certificate. It returns the
// certificate, and whether it is new. A fault in the files is no error: the leaf is
// issued again, and nothing is lost.
//
// The key stays as long as it is good. So a renewal replaces one file only, and nobody
// who reads the two files at that moment gets a certificate and a key that do not match.
func (l *leaf) ensure(now time.Time) (*tls.Certificate, bool, error) {
	log := logrus.WithField("component", "pki")
	key, err := readKey(l.keyFile)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.WithError(err).Warn("A key is unreadable and will be replaced")
		}
		if key, err = writeKey(l.keyFile, ecdsaKey); err != nil {
			return nil, false, err
		}
	}
	chain, reason := l.inspect(key, now)
	if reason == "" {
		return certificate(chain, key), false, nil
	}
	if chain, err = l.issue(key, now); err != nil {
		return nil, false, err
	}
	level := logrus.InfoLevel
	if reason == notThere {
		level = logrus.DebugLevel // as in every first start
	}
	log.Logf(level, "Issued %s: %s", l.certFile, reason)
	return certificate(chain, key), true, nil
}

// replace issues the leaf with a new key. A reader that gets a certificate and a key that
// do not match at that moment reads both again; so does the next start.
func (l *leaf) replace(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsaKey()
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", l.keyFile, err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode key %s: %w", l.keyFile, err)
	}
	chain, err := l.sign(key, now)
	if err != nil {
		return nil, err
	}
	return certificate(chain, key), datadir.WriteTogether(
		datadir.File{Path: l.keyFile, Data: text, Mode: keyMode},
		datadir.File{Path: l.certFile, Data: encodeCertificates(chain...), Mode: certMode},
	)
}

// dueOf returns leaf.due for a certificate. A certificate that expires together with its
// authority would be renewed again and again, and gain nothing.
func (l *leaf) dueOf(cert *x509.Certificate) time.Time {
	if !cert.NotAfter.Before(l.signer.cert().NotAfter) {
		return time.Time{}
	}
	return renewFrom(cert)
}

// notThere is the reason for issuing a leaf at the first start.
const notThere = "it was not there"

// inspect returns the chain in the leaf's file, and the reason why the leaf must be
// issued again, or "" if it need not.
func (l *leaf) inspect(key crypto.Signer, now time.Time) ([]*x509.Certificate, string) {
	chain, err := readCertificates(l.certFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, notThere
	case err != nil:
		return nil, "it was unreadable"
	}
	cert := chain[0]
	switch {
	case !matches(key, cert):
		return nil, "it was of another key"
	case cert.CheckSignatureFrom(l.signer.cert()) != nil, !bytes.Equal(cert.RawIssuer, l.signer.cert().RawSubject):
		return nil, "it was of another authority"
	case !slices.EqualFunc(chain[1:], l.signer.intermediates(), (*x509.Certificate).Equal):
		return nil, "the chain of its authority has changed"
	case cert.Subject.String() != l.subject.String(), !slices.Equal(cert.ExtKeyUsage, l.usage):
		return nil, "its subject has changed"
	case !sansOf(cert).equal(l.names()):
		return nil, "its names or addresses have changed"
	case cert.NotBefore.After(now):
		return nil, "it was not valid yet"
	}
	if due := l.dueOf(cert); !due.IsZero() && !now.Before(due) {
		return nil, "it would have expired on " + cert.NotAfter.Format(time.DateTime)
	}
	return chain, ""
}

// issue signs and writes a new certificate for key.
func (l *leaf) issue(key crypto.Signer, now time.Time) ([]*x509.Certificate, error) {
	chain, err := l.sign(key, now)
	if err != nil {
		return nil, err
	}
	return chain, datadir.WriteFile(l.certFile, encodeCertificates(chain...), certMode)
}

// sign returns a new certificate for key, with its chain.
func (l *leaf) sign(key crypto.Signer, now time.Time) ([]*x509.Certificate, error) {
	chain, err := l.signer.sign(key.Public(), l.subject, l.usage, l.names(), now)
	if err != nil {
		return nil, fmt.Errorf("make certificate %s: %w", l.certFile, err)
	}
	return chain, nil
}

// certificate returns a chain and its key in the form that package tls takes.
func certificate(chain []*x509.Certificate, key crypto.Signer) *tls.Certificate {
	c := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, cert := range chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}
