package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// The authority of clients signs the kubelets' serving certificates, so that none
// of them passes for an API server's. Pods, such as Prometheus, have to verify
// kubelets too. So ca.crt of service accounts holds two authorities: the servers'
// authority, and a constrained certificate of the clients' authority. The second has
// the same subject and key as that authority, and name constraints that exclude the
// names and addresses of the API. It also verifies certificates that were signed
// before it was made.

// reserved are the names and addresses of the API, which no node may have.
type reserved struct {
	// domains are names with all names below them.
	domains  []string
	prefixes []netip.Prefix
}

// reservedFor returns the names and addresses that the API has in every cluster with such
// settings. It leaves out those that differ between the servers of a cluster.
func reservedFor(clusterDomain string, serviceCIDRs []netip.Prefix) reserved {
	r := reserved{
		domains: []string{"kubernetes", "kubernetes.default", "svc", "svc." + clusterDomain, "localhost"},
		prefixes: []netip.Prefix{
			netip.MustParsePrefix("127.0.0.0/8"),
			netip.MustParsePrefix("::1/128"),
		},
	}
	for _, cidr := range serviceCIDRs {
		r.prefixes = append(r.prefixes, cidr.Masked())
	}
	return r
}

// hasName tells whether a name is the API's, or below one of the API's.
func (r reserved) hasName(name string) bool {
	return slices.ContainsFunc(r.domains, func(domain string) bool {
		return name == domain || strings.HasSuffix(name, "."+domain)
	})
}

// hasAddress tells whether an address is the API's.
func (r reserved) hasAddress(ip netip.Addr) bool {
	return slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// rootCA returns what pods trust, in PEM: the servers' authority, and the constrained
// certificate of the clients' authority.
func (s *Server) rootCA() ([]byte, error) {
	constrained, err := s.clientCA.constrain(s.reserved)
	if err != nil {
		return nil, fmt.Errorf("constrain %s: %w", s.clientCA.certFile, err)
	}
	return encodeCertificates(slices.Concat(s.serverCA.bundle, constrained)...), nil
}

// writeRootCA writes RootCAFile, unless it is up to date.
func (s *Server) writeRootCA() error {
	content, err := s.rootCA()
	if err != nil {
		return err
	}
	return datadir.WriteChanged(s.RootCAFile, content, certMode)
}

// constrain returns certificates of the authority that verify only servers without a
// reserved name or address. The first is for the authority itself. While it replaces
// another authority, the second is for that one, signed by its successor. They are the
// same on all servers and after every start. Otherwise each newly elected server would rewrite the
// ConfigMap kube-root-ca.crt in all namespaces.
func (a *authority) constrain(r reserved) ([]*x509.Certificate, error) {
	own, err := a.constrained(a.cert(), nil, r)
	if err != nil {
		return nil, err
	}
	all := []*x509.Certificate{own}
	if successor(a.bundle) == nil {
		// Only the user's own authority counts: one above it may sign more than nodes.
		return all, nil
	}
	for _, cert := range a.bundle {
		if bytes.Equal(cert.RawSubjectPublicKeyInfo, own.RawSubjectPublicKeyInfo) {
			continue
		}
		old, err := a.constrained(cert, own, r)
		if err != nil {
			return nil, err
		}
		all = append(all, old)
	}
	return all, nil
}

// constrained returns a constrained certificate for the subject and the key of cert. It
// is signed with the key of a, in the name of signer, or of itself if signer is nil.
func (a *authority) constrained(cert, signer *x509.Certificate, r reserved) (*x509.Certificate, error) {
	template := *cert // keeps the authority's own constraints
	template.AuthorityKeyId = nil
	template.SignatureAlgorithm = x509.UnknownSignatureAlgorithm // chosen by the kind of key
	template.ExtKeyUsage, template.UnknownExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, nil
	template.PermittedDNSDomainsCritical = true // this makes all constraints critical
	template.ExcludedDNSDomains = slices.Concat(cert.ExcludedDNSDomains, r.domains)
	template.ExcludedIPRanges = slices.Clone(cert.ExcludedIPRanges)
	for _, prefix := range r.prefixes {
		template.ExcludedIPRanges = append(template.ExcludedIPRanges, &net.IPNet{
			IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		})
	}
	serial, err := serialOf(cert, r)
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	if signer == nil {
		signer = &template
	}
	// Without a source of random numbers, ECDSA signatures are deterministic (RFC 6979).
	// RSA signatures of PKCS #1 v1.5 always are.
	der, err := x509.CreateCertificate(nil, &template, signer, cert.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// serialOf returns a serial number made from the content of a constrained certificate:
// 128 bits of a hash.
func serialOf(cert *x509.Certificate, r reserved) (*big.Int, error) {
	text, err := json.Marshal([]any{cert.Raw, r.domains, r.prefixes})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return new(big.Int).SetBytes(append([]byte{1}, sum[:16]...)), nil
}

// checkReserved fails if a name or an address of a node belongs to the API or to this
// server.
func (s *Server) checkReserved(node string, ips []netip.Addr) error {
	own := s.servingNames()
	if s.reserved.hasName(node) || slices.ContainsFunc(own.dns, func(name string) bool { return strings.EqualFold(name, node) }) {
		return fmt.Errorf("a node cannot have the name %s, which is a name of the cluster's API: give the node another name (--node-name)", node)
	}
	// In a certificate, a name that is an address counts as an address.
	if ip, err := netip.ParseAddr(node); err == nil && !slices.Contains(ips, ip) {
		return fmt.Errorf("a node cannot have the name %s, which is not one of its addresses: give the node another name (--node-name)", node)
	}
	for _, ip := range ips {
		if s.reserved.hasAddress(ip) || slices.Contains(own.ips, ip) {
			return fmt.Errorf("a node cannot have the address %s, which is an address of the cluster's API: give the node another address (--node-ip), or remove this one from tls-san", ip)
		}
	}
	return nil
}
