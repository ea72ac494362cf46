package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// APIName is a name that every server's certificate of the API is valid for,
// by whatever name or address it was reached.
const APIName = "kubernetes.default.svc"

// NodesGroup is the group of all nodes, which Node authorization goes by.
const NodesGroup = "system:nodes"

// NodeUser returns the user that is a node: its kubelet.
func NodeUser(node string) string { return "system:node:" + node }

// ProxyUser is upstream's name for the service proxy, who may read Services,
// EndpointSlices, ServiceCIDRs and nodes (bootstrappolicy, system:node-proxier).
//
//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go ClusterRoleBindings
const ProxyUser = "system:kube-proxy"

// NodeGroup returns the group of everything that runs on a node and calls the
// API from there, whatever its user: audit logs and policies see the node.
func NodeGroup(node string) string { return "kedge:node:" + node }

// ServerRegistration is what the certificates of a server's own node carry in place of
// the UID of a registration: a server signs them itself, and cannot be held to one.
const ServerRegistration = "server"

// RegistrationGroup returns the group by which a node's certificate is tied to one
// registration of the node: it is accepted as long as the cluster has that.
func RegistrationGroup(uid string) string { return "kedge:registration:" + uid }

// RegistrationOf returns the node that a certificate with this subject is of, as the
// node itself or as one of its services, and the UID of the registration that it
// carries. The UID is empty in certificates that an older kedge has signed. It tells
// whether the certificate is of a node at all, and does not verify the certificate.
func RegistrationOf(subject pkix.Name) (node, uid string, ok bool) {
	for _, group := range subject.Organization {
		if name, found := strings.CutPrefix(group, NodeGroup("")); found {
			node, ok = name, true
		}
		if id, found := strings.CutPrefix(group, RegistrationGroup("")); found {
			uid = id
		}
	}
	if !ok && slices.Contains(subject.Organization, NodesGroup) {
		node, ok = strings.TrimPrefix(subject.CommonName, NodeUser("")), true
	}
	return node, uid, ok
}

// NodeCertificate is one of the certificates that a joined node has.
type NodeCertificate struct {
	// Name is what node and server call it, and on the node the files' name.
	Name    string
	User    string
	Groups  []string
	Serving bool
}

// NodeCertificates returns all certificates of a node, in the groups that they have
// beside that of the registration.
func NodeCertificates(node string) []NodeCertificate {
	kubelet := []string{NodesGroup, NodeGroup(node)}
	service := []string{NodeGroup(node)}
	return []NodeCertificate{
		{Name: "client-kubelet", User: NodeUser(node), Groups: kubelet},
		{Name: "serving-kubelet", User: NodeUser(node), Groups: kubelet, Serving: true},
		{Name: "client-kube-proxy", User: ProxyUser, Groups: service},
		{Name: "client-flannel", User: "system:kedge:flannel", Groups: service},
		{Name: "client-dns", User: "system:kedge:dns", Groups: service},
		{Name: "client-storage", User: "system:kedge:storage", Groups: service},
	}
}

// CheckNode tells whether a node may have a name and addresses, as far as its
// certificates go. Those of the API and of this server are not for nodes.
func (s *Server) CheckNode(name string, ips []netip.Addr) error {
	if err := checkNode(name, ips); err != nil {
		return err
	}
	return s.checkReserved(name, ips)
}

// checkNode tells whether a name and addresses can be those of a node.
func checkNode(name string, ips []netip.Addr) error {
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return fmt.Errorf("%q cannot be the name of a node: %s", name, faults[0])
	}
	if len(ips) == 0 || len(ips) > 2 {
		return fmt.Errorf("a node has one address or two, not %d", len(ips))
	}
	// A certificate has no zones: with one, an address would pass for another.
	if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return !ip.IsGlobalUnicast() || ip.Zone() != "" }); i >= 0 {
		return fmt.Errorf("%s cannot be the address of a node", ips[i])
	}
	return nil
}

// SignNode signs the certificates of a node, whose registration has the UID uid, and
// returns them in PEM, with their chains. They are valid until NodeEnd. requests are
// certificate requests in DER by the certificates' names; nothing but the public key is
// taken from them. CheckNode must have passed.
func (s *Server) SignNode(node, uid string, ips []netip.Addr, requests map[string][]byte) (map[string][]byte, error) {
	if err := s.checkReserved(node, ips); err != nil {
		return nil, err
	}
	now := s.clock.Now()
	signed := map[string][]byte{}
	for _, c := range NodeCertificates(node) {
		key, err := publicKey(requests[c.Name])
		if err != nil {
			return nil, fmt.Errorf("certificate request %s: %w", c.Name, err)
		}
		usage, names := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, sans{}
		if c.Serving {
			usage, names = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, splitNames([]string{node}, ips)
		}
		groups := append(c.Groups, RegistrationGroup(uid))
		chain, err := s.clientCA.sign(key, pkix.Name{CommonName: c.User, Organization: groups}, usage, names, now)
		if err != nil {
			return nil, fmt.Errorf("sign certificate %s: %w", c.Name, err)
		}
		signed[c.Name] = encodeCertificates(chain...)
	}
	return signed, nil
}

// NodeEnd is until when certificates of nodes are valid that are signed now.
func (s *Server) NodeEnd() time.Time { return s.clientCA.leafEnd(s.clock.Now()) }

// publicKey returns the key that a certificate request proves to be the
// sender's.
func publicKey(der []byte) (*ecdsa.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("its key is not of the kind ECDSA")
	}
	return key, request.CheckSignature()
}

// NodeOf returns the name of the node that a client certificate, with its
// chain, identifies, as of now.
func (s *Server) NodeOf(chain []*x509.Certificate) (string, error) {
	if err := s.CheckNodeClient(chain); err != nil {
		return "", err
	}
	return NodeOfSubject(chain[0].Subject)
}

// NodeOfSubject returns the name of the node that a certificate with this subject
// identifies. It must have been verified.
func NodeOfSubject(subject pkix.Name) (string, error) {
	name := subject.CommonName[min(len(subject.CommonName), len(NodeUser(""))):]
	if name == "" || subject.CommonName != NodeUser(name) || !slices.Contains(subject.Organization, NodesGroup) {
		return "", errors.New("not the certificate of a node")
	}
	return name, nil
}

// Aging tells whether a certificate is one that nodes and servers renew by
// themselves, and should have: half the time for that is over. It may be anybody's.
func (s *Server) Aging(chain []*x509.Certificate) bool {
	if len(chain) == 0 {
		return false
	}
	cert := chain[0]
	renewed := slices.ContainsFunc(cert.Subject.Organization, func(group string) bool { return strings.HasPrefix(group, NodeGroup("")) }) ||
		cert.Subject.CommonName == etcdClientUser
	return renewed && s.clock.Now().After(cert.NotAfter.Add(-cert.NotAfter.Sub(renewFrom(cert))/2))
}

// CheckNodeClient verifies a client certificate, with its chain, of the authority that
// signs those of nodes, as of now.
func (s *Server) CheckNodeClient(chain []*x509.Certificate) error {
	return s.checkClient(s.clientCA, chain)
}

// checkClient verifies a client certificate, with its chain, as of now.
func (s *Server) checkClient(signer *authority, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("no client certificate")
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range signer.bundle {
		roots.AddCert(cert)
	}
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: s.clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
