package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// APIName is a name that every API server's certificate is valid for, whatever name or
// address the server was reached by.
const APIName = "kubernetes.default.svc"

// NodesGroup is the group of all nodes. The Node authorizer goes by it.
const NodesGroup = "system:nodes"

// NodeUser returns the user of a node, which is its kubelet.
func NodeUser(node string) string { return "system:node:" + node }

// ProxyUser is upstream's name for the service proxy. It may read Services,
// EndpointSlices, ServiceCIDRs and nodes (bootstrappolicy, system:node-proxier).
//
//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go ClusterRoleBindings
const ProxyUser = "system:kube-proxy"

// NodeGroup returns the group of everything that runs on a node and calls the API from
// there, whatever its user. By it, audit logs and policies see the node.
func NodeGroup(node string) string { return "kedge:node:" + node }

// ServerRegistration is what the certificates of a server's own node carry instead of the
// UID of a registration. A server signs these itself and cannot be held to one.
const ServerRegistration = "server"

// RegistrationGroup returns the group that ties a node's certificate to one registration
// of the node. The certificate is accepted as long as that registration exists.
func RegistrationGroup(uid string) string { return "kedge:registration:" + uid }

// RegistrationOf returns the node whose certificate has this subject, as the node itself
// or as one of its services, and the UID of the registration that the certificate
// carries. The UID is empty if an older kedge signed the certificate. ok tells whether
// the certificate is a node's at all. RegistrationOf does not verify the certificate.
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

// FormerNode returns the name of the node that this host was the last time, by the certificate that is
// left of it. It is empty on a new host.
func FormerNode(dir datadir.Dir) string {
	certs, err := readCertificates(filepath.Join(dir.AgentTLS(), "client-kubelet.crt"))
	if err != nil {
		return ""
	}
	node, _, _ := RegistrationOf(certs[0].Subject)
	return node
}

// NodeCertificate is one of the certificates that a joined node has.
type NodeCertificate struct {
	// Name is what node and server call the certificate, and the base name of its files.
	Name    string
	User    string
	Groups  []string
	Serving bool
}

// NodeCertificates returns all certificates of a node, with their groups except the
// registration's.
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
		{Name: "client-loadbalancer", User: servicelb.User, Groups: service},
		{Name: "client-gateway", User: gateways.User, Groups: service},
	}
}

// CheckNode fails if a node may not have a name or an address, as far as its certificates
// go. Nodes may not have those of the API or of this server.
func (s *Server) CheckNode(name string, ips []netip.Addr) error {
	if err := checkNode(name, ips); err != nil {
		return err
	}
	return s.checkReserved(name, ips)
}

// checkNode fails if no node can have this name or these addresses.
func checkNode(name string, ips []netip.Addr) error {
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return fmt.Errorf("invalid node name %q: %s", name, faults[0])
	}
	if len(ips) == 0 || len(ips) > 2 {
		return fmt.Errorf("a node has one address or two, not %d", len(ips))
	}
	// Certificates have no zones, so an address with a zone would pass for another
	// address.
	if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return !ip.IsGlobalUnicast() || ip.Zone() != "" }); i >= 0 {
		return fmt.Errorf("%s cannot be the address of a node", ips[i])
	}
	return nil
}

// SignNode signs the certificates of a node whose registration has the UID uid. It
// returns them in PEM, with their chains, by name. They are valid until NodeEnd. requests
// are certificate requests in DER, by the certificates' names; only the public key is
// taken from them. The caller must have called CheckNode.
func (s *Server) SignNode(node, uid string, ips []netip.Addr, requests map[string][]byte) (map[string][]byte, error) {
	if err := s.checkReserved(node, ips); err != nil {
		return nil, err
	}
	now := s.clock.Now()
	signed := map[string][]byte{}
	for _, c := range NodeCertificates(node) {
		request, asked := requests[c.Name]
		if !asked && (c.Name == "client-loadbalancer" || c.Name == "client-gateway") {
			continue // the node is of an older kedge
		}
		key, err := publicKey(request)
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

// NodeEnd returns the time until which node certificates that are signed now are valid.
func (s *Server) NodeEnd() time.Time { return s.clientCA.leafEnd(s.clock.Now()) }

// publicKey returns the key in a certificate request, after it has checked that the
// sender owns the key.
func publicKey(der []byte) (*ecdsa.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("its key is not an ECDSA key")
	}
	return key, request.CheckSignature()
}

// NodeOf verifies a client certificate, with its chain, as of now, and returns the name
// of the node that it identifies.
func (s *Server) NodeOf(chain []*x509.Certificate) (string, error) {
	if err := s.CheckNodeClient(chain); err != nil {
		return "", err
	}
	return NodeOfSubject(chain[0].Subject)
}

// NodeOfSubject returns the name of the node that a certificate with this subject
// identifies. The caller must have verified the certificate.
func NodeOfSubject(subject pkix.Name) (string, error) {
	name := subject.CommonName[min(len(subject.CommonName), len(NodeUser(""))):]
	if name == "" || subject.CommonName != NodeUser(name) || !slices.Contains(subject.Organization, NodesGroup) {
		return "", errors.New("not the certificate of a node")
	}
	return name, nil
}

// Aging tells whether a certificate is one that nodes and servers renew by themselves and
// should have renewed: half of the time for the renewal is over. The certificate need not
// be verified.
func (s *Server) Aging(chain []*x509.Certificate) bool {
	if len(chain) == 0 {
		return false
	}
	cert := chain[0]
	renewed := slices.ContainsFunc(cert.Subject.Organization, func(group string) bool { return strings.HasPrefix(group, NodeGroup("")) }) ||
		cert.Subject.CommonName == etcdClientUser
	return renewed && s.clock.Now().After(cert.NotAfter.Add(-cert.NotAfter.Sub(renewFrom(cert))/2))
}

// CheckNodeClient verifies a client certificate, with its chain, as of now, against the
// authority that signs those of nodes.
func (s *Server) CheckNodeClient(chain []*x509.Certificate) error {
	return s.checkClient(s.clientCA, chain)
}

// checkClient verifies a client certificate, with its chain, as of now.
func (s *Server) checkClient(signer *authority, chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("no client certificate")
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: pool(signer.bundle), Intermediates: pool(chain[1:]), CurrentTime: s.clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
