package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// Certificate makes a self-signed certificate for a server of that name, and its key, in PEM.
func Certificate(t testing.TB, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("EC PRIVATE KEY", keyDER)
}

// Signed makes a certificate for a server of that name, and its key, in PEM. The authority is one of
// Certificate.
func Signed(t testing.TB, authority, authorityKey []byte, name string) (certificate, key []byte) {
	t.Helper()
	signer, err := tls.X509KeyPair(authority, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, SerialNumber: serial.String()}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.Leaf, private.Public(), signer.PrivateKey.(crypto.Signer))
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("EC PRIVATE KEY", keyDER)
}

// Expire replaces the certificate in a file by the same one that ended an hour ago, signed by the
// authority in the files authority.crt and authority.key.
func Expire(t testing.TB, authority, file string) {
	t.Helper()
	Date(t, authority, file, time.Now().Add(-365*24*time.Hour), time.Now().Add(-time.Hour))
}

// Date replaces the certificate in a file by the same one with another period of validity, signed as in
// Expire.
func Date(t testing.TB, authority, file string, notBefore, notAfter time.Time) {
	t.Helper()
	signer, err := tls.LoadX509KeyPair(authority+".crt", authority+".key")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no certificate", file)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	certificate.NotBefore, certificate.NotAfter = notBefore, notAfter
	der, err := x509.CreateCertificate(rand.Reader, certificate, signer.Leaf, certificate.PublicKey, signer.PrivateKey.(crypto.Signer))
	if err == nil {
		err = os.WriteFile(file, encode("CERTIFICATE", der), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Redate does what Date does to all certificates of a host except the authorities, with the authorities of
// server.
func Redate(t testing.TB, host, server *harness.Host, notBefore, notAfter time.Time) {
	t.Helper()
	const serverTLS = "/var/lib/kedge/server/tls"
	for _, folder := range []string{serverTLS, serverTLS + "/etcd", "/var/lib/kedge/agent/tls"} {
		files, err := filepath.Glob(host.Path(folder) + "/*.crt")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			authority := ""
			switch name := strings.TrimSuffix(filepath.Base(file), ".crt"); {
			case strings.HasSuffix(name, "-ca"):
				continue
			case name == "serving-kube-apiserver":
				authority = "server-ca"
			case name == "client-auth-proxy":
				authority = "request-header-ca"
			case name == "peer-server-client":
				authority = "etcd/peer-ca"
			case strings.HasSuffix(folder, "/etcd"):
				authority = "etcd/server-ca"
			default:
				authority = "client-ca"
			}
			Date(t, server.Path(filepath.Join(serverTLS, authority)), file, notBefore, notAfter)
		}
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
