package variants

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// certificate is a certificate with its key.
type certificate struct {
	*x509.Certificate
	key crypto.Signer
}

// authority makes a certificate authority, signed by parent or by itself.
func authority(t *testing.T, name string, parent *certificate) *certificate {
	return issue(t, parent, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, NotAfter: time.Now().AddDate(20, 0, 0),
	})
}

// serverCertificate returns a certificate of a server with names, which may be addresses.
func serverCertificate(t *testing.T, signer *certificate, names ...string) *certificate {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotAfter: time.Now().AddDate(1, 0, 0),
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return issue(t, signer, template)
}

func issue(t *testing.T, signer *certificate, template *x509.Certificate) *certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = &certificate{template, key}
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	template.NotBefore = time.Now().AddDate(0, 0, -1)
	der, err := x509.CreateCertificate(rand.Reader, template, signer.Certificate, key.Public(), signer.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &certificate{cert, key}
}

func (c *certificate) certPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

func (c *certificate) keyPEM(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// readCertificates reads all certificates of a file.
func readCertificates(t *testing.T, file string) []*x509.Certificate {
	t.Helper()
	rest, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var chain []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return chain
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, cert)
	}
}

func readKey(t *testing.T, file string) crypto.Signer {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		return key.(crypto.Signer)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
