package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
)

const (
	authorityValidity = 10 * 365 * 24 * time.Hour
	// authorityNotice is how long before an authority expires kedge warns of it.
	authorityNotice = 365 * 24 * time.Hour
)

// authority is a certificate authority with its key.
type authority struct {
	certFile, keyFile string
	key               crypto.Signer
	// bundle is all of certFile: first the certificate of key, and then, if a user
	// brought an intermediate authority, those above it up to the root.
	bundle []*x509.Certificate
}

func (a *authority) cert() *x509.Certificate { return a.bundle[0] }

// intermediates are the authorities that are not roots. A leaf must carry them, so that a
// peer that knows only the root can verify it.
func (a *authority) intermediates() []*x509.Certificate {
	var chain []*x509.Certificate
	for _, cert := range a.bundle {
		if cert.CheckSignatureFrom(cert) != nil {
			chain = append(chain, cert)
		}
	}
	return chain
}

// signerFile returns a file with the authority's own certificate alone. If certFile has
// more than that, signerFile writes another file.
func (a *authority) signerFile() (string, error) {
	if len(a.bundle) == 1 {
		return a.certFile, nil
	}
	file := strings.TrimSuffix(a.certFile, ".crt") + "-signer.crt"
	return file, datadir.WriteChanged(file, encodeCertificates(a.cert()), certMode)
}

// ensureAuthority returns the authority in path.crt and path.key, which may be a user's
// own. If there is none, it makes a new one.
func ensureAuthority(path, name string, now time.Time) (*authority, error) {
	a := &authority{certFile: path + ".crt", keyFile: path + ".key"}
	bundle, err := readCertificates(a.certFile)
	if errors.Is(err, os.ErrNotExist) {
		// The key first, so that no certificate exists without its key. After a
		// kill -9 between the two, the next start makes the certificate.
		if a.key, err = ensureKey(a.keyFile, ecdsaKey); err != nil {
			return nil, err
		}
		return a, a.create(name, now)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: put the right file back from a backup", err)
	}
	a.bundle = bundle
	a.key, err = readKey(a.keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has no key: put %s beside it", a.certFile, a.keyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: put the right file back from a backup", err)
	}
	return a, a.check(now)
}

// create makes the certificate of a.key, and keeps it.
func (a *authority) create(name string, now time.Time) error {
	if err := a.make(name, now); err != nil {
		return err
	}
	return datadir.WriteFile(a.certFile, encodeCertificates(a.cert()), certMode)
}

// make makes the certificate of a.key.
func (a *authority) make(name string, now time.Time) error {
	serial, err := serialNumber()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The name has the time in it, as in k3s. Otherwise the authorities of two
		// clusters would have one name, and clients would mistake one for the other.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", name, now.Unix())},
		NotBefore:             version.CommitDate(),
		NotAfter:              now.Add(authorityValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", a.certFile, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", a.certFile, err)
	}
	a.bundle = []*x509.Certificate{cert}
	return nil
}

// check fails if the authority on disk cannot sign. It warns if the authority expires
// soon.
func (a *authority) check(now time.Time) error {
	cert := a.cert()
	switch {
	case !matches(a.key, cert):
		return fmt.Errorf("%s is not the key of the first certificate in %s: put the right one back from a backup", a.keyFile, a.certFile)
	case !cert.BasicConstraintsValid || !cert.IsCA,
		cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%s may not sign certificates: it must be a certificate authority (CA:TRUE, keyCertSign)", a.certFile)
	case now.Add(authorityNotice).After(cert.NotAfter):
		// A warning, not an error: the clock may be wrong, and a refusal would mend
		// nothing.
		logrus.WithField("component", "pki").Warnf("The certificate authority %s expires on %s: replace it before then",
			a.certFile, cert.NotAfter.Format(time.DateOnly))
	}
	return nil
}

// leafEnd is when a leaf that is signed now expires: never after its authority.
func (a *authority) leafEnd(now time.Time) time.Time {
	end := now.Add(leafValidity)
	if limit := a.cert().NotAfter; limit.Before(end) {
		return limit
	}
	return end
}

// sign signs a leaf for a key, and returns the leaf with its chain.
func (a *authority) sign(key crypto.PublicKey, subject pkix.Name, usage []x509.ExtKeyUsage, names sans, now time.Time) ([]*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		// Not now, because the clock of the peer that checks the certificate may be
		// behind.
		NotBefore:             version.CommitDate(),
		NotAfter:              a.leafEnd(now),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usage,
		BasicConstraintsValid: true,
		DNSNames:              names.dns,
	}
	for _, ip := range names.ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert(), key, a.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return append([]*x509.Certificate{cert}, a.intermediates()...), nil
}

// serialNumber returns 127 random bits. RFC 5280 wants at most 20 octets and a positive
// number, the CA/Browser Forum at least 64 random bits.
func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
