package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/util/keyutil"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// keyMode is for all secrets, certMode for certificates, which are in folders that
	// only root may read.
	keyMode  os.FileMode = 0o600
	certMode os.FileMode = 0o600
)

// errNoPEM says that a file does not hold the kind of block that was looked for.
var errNoPEM = errors.New("found no such PEM block")

// readKey reads a private key in any of the encodings that openssl writes.
func readKey(path string) (crypto.Signer, error) {
	data, err := datadir.ReadText(path)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			return nil, fmt.Errorf("read key %s: it is encrypted with a pass phrase: store the key without one", path)
		default:
			// "EC PARAMETERS", which openssl writes before the key.
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read key %s: %w", path, err)
		}
		if signer, ok := key.(crypto.Signer); ok {
			return signer, nil
		}
	}
	return nil, fmt.Errorf("read key %s: %w", path, errNoPEM)
}

// readCertificates reads all certificates of a file, in their order in the file.
func readCertificates(path string) ([]*x509.Certificate, error) {
	data, err := datadir.ReadText(path)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", path, err)
	}
	return certs, nil
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errNoPEM
	}
	return certs, nil
}

// pool returns a pool of certificates.
func pool(certs []*x509.Certificate) *x509.CertPool {
	all := x509.NewCertPool()
	for _, cert := range certs {
		all.AddCert(cert)
	}
	return all
}

// CAHash returns the hash of the servers' authority that join tokens carry: the SHA-256,
// in hexadecimal, of the DER of the root, which is the last certificate in caPEM. It is
// the same value that `openssl x509 -fingerprint -sha256` prints. It stays the same when
// an intermediate authority is replaced.
func CAHash(caPEM []byte) (string, error) {
	certs, err := parseCertificates(caPEM)
	if err != nil {
		return "", fmt.Errorf("hash certificate authority: %w", err)
	}
	return hashOf(certs[len(certs)-1]), nil
}

func hashOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// FindCA returns, in PEM, the certificate in caPEM whose hash, as CAHash makes it, is
// hash; nil if there is none. While authorities are replaced, caPEM has several
// certificates.
func FindCA(caPEM []byte, hash string) []byte {
	certs, err := parseCertificates(caPEM)
	if err != nil {
		return nil
	}
	for _, cert := range certs {
		if hashOf(cert) == hash {
			return encodeCertificates(cert)
		}
	}
	return nil
}

func encodeCertificates(certs ...*x509.Certificate) []byte {
	var raw [][]byte
	for _, cert := range certs {
		raw = append(raw, cert.Raw)
	}
	return encodeDER(raw)
}

func encodeDER(certs [][]byte) []byte {
	var data []byte
	for _, der := range certs {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return data
}

// ensureKey returns the key in a file. If the file is missing, it makes one.
func ensureKey(path string, generate func() (crypto.Signer, error)) (crypto.Signer, error) {
	key, err := readKey(path)
	switch {
	case err == nil:
		return key, nil
	case errors.Is(err, os.ErrNotExist):
		return writeKey(path, generate)
	}
	return nil, fmt.Errorf("%w: put the right file back from a backup", err)
}

func writeKey(path string, generate func() (crypto.Signer, error)) (crypto.Signer, error) {
	key, err := generate()
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", path, err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode key %s: %w", path, err)
	}
	return key, datadir.WriteFile(path, text, keyMode)
}

func ecdsaKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func rsaKey() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) }

// matches tells whether a key is the key of a certificate.
func matches(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}
