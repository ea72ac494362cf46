package datastore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
)

// TestClientCertificateIsReadAnew replaces the certificate files, as a user
// renews them while kedge runs.
func TestClientCertificateIsReadAnew(t *testing.T) {
	files := TLS{CertFile: filepath.Join(t.TempDir(), "crt"), KeyFile: filepath.Join(t.TempDir(), "key")}
	write := func(serial int64) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(serial)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for file, block := range map[string]*pem.Block{
			files.CertFile: {Type: "CERTIFICATE", Bytes: der}, files.KeyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER},
		} {
			if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1)
	config, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, serial := range []int64{1, 2} {
		write(serial)
		shown, err := config.GetClientCertificate(nil)
		if err != nil || shown.Leaf.SerialNumber.Int64() != serial {
			t.Errorf("shows %+v, %v, want %d", shown, err, serial)
		}
	}
}
