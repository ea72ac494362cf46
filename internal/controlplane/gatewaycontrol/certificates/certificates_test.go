package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newSecret returns a Secret with a certificate for a host name.
func newSecret(t *testing.T, name, version, host string) *corev1.Secret {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid", ResourceVersion: version},
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
	}
}

func TestCache(t *testing.T) {
	var c Cache
	first := newSecret(t, "a", "1", "a.example")
	read := func(secret *corev1.Secret) *Certificate {
		t.Helper()
		found, err := c.Read(secret)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	found := read(first)
	if found.Leaf.DNSNames[0] != "a.example" || found.Chain != string(first.Data[corev1.TLSCertKey]) {
		t.Errorf("it reads %+v", found)
	}
	if read(first) != found || read(first.DeepCopy()) != found {
		t.Error("it reads the same Secret twice")
	}
	if second := read(newSecret(t, "a", "2", "b.example")); second.Leaf.DNSNames[0] != "b.example" {
		t.Errorf("of a newer Secret it returns %v", second.Leaf.DNSNames)
	}
	// Objects of a test have no versions.
	if one, other := read(newSecret(t, "b", "", "a.example")), read(newSecret(t, "b", "", "b.example")); one == other {
		t.Error("Secrets without a version are the same to it")
	}
	bad := newSecret(t, "c", "1", "c.example")
	bad.Data[corev1.TLSPrivateKeyKey] = newSecret(t, "c", "1", "c.example").Data[corev1.TLSPrivateKeyKey]
	for range 2 {
		if _, err := c.Read(bad); err == nil {
			t.Error("a key of another certificate is accepted")
		}
	}
	c.Sweep()
	if len(c.known) != 3 {
		t.Errorf("it has %d Secrets", len(c.known))
	}
	read(newSecret(t, "a", "2", "b.example"))
	if c.Sweep(); len(c.known) != 1 {
		t.Errorf("of Secrets that nobody has read it has %d", len(c.known))
	}
}
