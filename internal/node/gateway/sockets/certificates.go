package sockets

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

const (
	// acmeProtocol is what an ACME authority offers alone (RFC 8737).
	acmeProtocol = "acme-tls/1"
	h3Protocol   = "h3"
	// fallbacks is how many certificates are tried for a client whose server name none covers.
	fallbacks = 4
)

// certificates have been parsed, by name.
type certificates map[string]*certificate

type certificate struct {
	chain, key string
	// parsed is nil if they are no certificate with its key.
	parsed *tls.Certificate
	err    error
}

// certificate returns the certificate with a name, or nil if it cannot be used. It parses
// each one once.
func (c *compiler) certificate(name string, listener *routing.Listener) *tls.Certificate {
	source := c.state.Certificates[name]
	if source == nil {
		c.report("Listener %s has no certificate %s yet", listener.Name, name)
		return nil
	}
	found := c.used[name]
	if found == nil {
		found = c.certificates[name]
	}
	if found == nil || found.chain != source.Chain || found.key != source.Key {
		found = &certificate{chain: source.Chain, key: source.Key}
		parsed, err := tls.X509KeyPair([]byte(source.Chain), []byte(source.Key))
		if found.err = err; err == nil {
			found.parsed = &parsed
		}
	}
	c.used[name] = found
	if found.err != nil {
		c.report("Certificate %s of listener %s cannot be used: %v", name, listener.Name, found.err)
	}
	return found.parsed
}

// config returns what a listener that ends TLS shows to clients and asks of them.
func (c *compiler) config(listener *routing.Listener, quic bool) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case quic:
		config.NextProtos = []string{h3Protocol}
	case listener.Protocol == routing.HTTPS:
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	var shown choice
	for _, name := range listener.Certificates {
		if certificate := c.certificate(name, listener); certificate != nil {
			shown.add(certificate)
		}
	}
	// Without GetCertificate and Certificates, crypto/tls answers with the alert
	// unrecognized_name.
	if len(shown.all) > 0 {
		config.GetCertificate = shown.get
	}
	if listener.ClientAuthorities == "" {
		return config
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM([]byte(listener.ClientAuthorities)) && !listener.AllowInsecureFallback {
		c.report("Listener %s accepts no client: the authorities of its clients have no certificate in PEM", listener.Name)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if listener.AllowInsecureFallback {
		// Any certificate is taken, and none. crypto/tls verifies nothing then.
		config.ClientAuth = tls.RequestClientCert
	}
	// All listeners of a socket share the keys of tickets, which outlive changes. With a
	// ticket, a client of another listener would pass without its certificate being verified
	// against these authorities.
	config.SessionTicketsDisabled = true
	return config
}

// unknown is the configuration for server names that no listener has. It has no
// certificate, so the handshake fails with the alert unrecognized_name.
func unknown(quic bool) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if quic {
		config.NextProtos = []string{h3Protocol}
	}
	return config
}

// choice chooses between the certificates of a listener.
type choice struct {
	all []*tls.Certificate
	// byName has indexes of all by each name of the certificates. Names that begin with a
	// dot are wildcards for one label.
	byName map[string][]int
}

func (c *choice) add(certificate *tls.Certificate) {
	if c.byName == nil {
		c.byName = map[string][]int{}
	}
	names := map[string]bool{}
	for _, name := range certificate.Leaf.DNSNames {
		names[strings.ToLower(strings.TrimPrefix(name, "*"))] = true
	}
	for name := range names {
		c.byName[name] = append(c.byName[name], len(c.all))
	}
	c.all = append(c.all, certificate)
}

// get returns the first certificate that covers the server name and has a key that the
// client supports. If there is none, it returns the first that covers the name, and else the
// first that the client supports.
func (c *choice) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name, _ := hosts.FromServerName(hello.ServerName) // or no listener would have it
	covering := c.covering(name.String())
	for _, certificate := range covering {
		if hello.SupportsCertificate(certificate) == nil {
			return certificate, nil
		}
	}
	if len(covering) > 0 {
		return covering[0], nil
	}
	anyName := *hello
	anyName.ServerName = ""
	for _, certificate := range c.all[:min(len(c.all), fallbacks)] {
		if anyName.SupportsCertificate(certificate) == nil {
			return certificate, nil
		}
	}
	return c.all[0], nil
}

// covering returns the certificates that have a name, in their order.
func (c *choice) covering(name string) []*tls.Certificate {
	if name == "" || name[0] == '.' {
		return nil
	}
	indexes := c.byName[name]
	if i := strings.IndexByte(name, '.'); i > 0 {
		if wildcards := c.byName[name[i:]]; len(wildcards) > 0 {
			indexes = slices.Concat(indexes, wildcards)
			slices.Sort(indexes)
		}
	}
	found := make([]*tls.Certificate, 0, len(indexes))
	for _, i := range indexes {
		found = append(found, c.all[i])
	}
	return found
}

func sorted[T any](values map[string]T) []string { return slices.Sorted(maps.Keys(values)) }
