// Package certificates reads the certificates of Secrets, once for each version of a Secret. To
// check that a key belongs to its certificate takes a tenth of a millisecond and more. Package
// sources keeps a Cache for the packages compile and ingress.
package certificates

import (
	"crypto/tls"
	"crypto/x509"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Certificate is a certificate with its key, as nodes get it.
type Certificate struct {
	*routing.Certificate
	// Leaf is the first certificate of the chain.
	Leaf *x509.Certificate
}

// Read reads the certificate and the key of a Secret of type kubernetes.io/tls. It fails if they
// cannot be read or do not belong together.
func Read(secret *corev1.Secret) (*Certificate, error) {
	chain, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err // the caller names the Secret
	}
	leaf := pair.Leaf
	if leaf == nil { // with the setting x509keypairleaf=0 of GODEBUG
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, err // the caller names the Secret
		}
	}
	found := &routing.Certificate{Chain: string(chain), Key: string(key)}
	if err := found.Check(); err != nil {
		return nil, err // the caller names the Secret
	}
	return &Certificate{found, leaf}, nil
}

// Cache remembers what Read returned. Its zero value is ready. It is for one goroutine.
type Cache struct {
	known map[types.NamespacedName]*entry
}

type entry struct {
	secret *corev1.Secret
	found  *Certificate
	err    error
	used   bool
}

// Read is like the function Read. It reads a Secret again only if the Secret has changed. Nobody
// may change what it returns, or the Secret.
func (c *Cache) Read(secret *corev1.Secret) (*Certificate, error) {
	name := types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name}
	is := c.known[name]
	if is == nil || !same(is.secret, secret) {
		is = &entry{secret: secret}
		is.found, is.err = Read(secret)
		if c.known == nil {
			c.known = map[types.NamespacedName]*entry{}
		}
		c.known[name] = is
	}
	is.used = true
	return is.found, is.err
}

// same tells whether two Secrets have the same content.
func same(a, b *corev1.Secret) bool {
	return a == b || a.UID == b.UID && a.ResourceVersion == b.ResourceVersion && a.ResourceVersion != ""
}

// Sweep forgets the Secrets that nobody has read since the last call.
func (c *Cache) Sweep() {
	for name, is := range c.known {
		if !is.used {
			delete(c.known, name)
		}
		is.used = false
	}
}
