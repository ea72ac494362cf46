// Package pki makes, renews and checks what servers and nodes prove their identity with:
// certificate authorities and their rotation, certificates, the administrator's
// kubeconfig, and a clock to judge validity by. Packages server and join call it before
// any component starts; components get file paths and functions from it.
package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// The names and groups in kedge's client certificates. A manifest binds each group to its
// cluster role, so that it can be revoked. None of them is system:masters, which no
// authorizer can refuse.
const (
	AdminUser = "kedge-admin"
	// AdminGroup is bound to cluster-admin.
	AdminGroup = "kedge:cluster-admins"
	// KubeletClientUser is the user as which the API server calls kubelets.
	KubeletClientUser = "kube-apiserver-kubelet-client"
	// KubeletClientGroup is bound to system:kubelet-api-admin.
	KubeletClientGroup = "kedge:kubelet-api-admins"
	// ProxyClientUser is the user as which the API server calls aggregated APIs. It is
	// the only name that these need to allow for the request-header authority.
	ProxyClientUser = "system:auth-proxy"
)

// ServerOptions is what EnsureServer has to know.
type ServerOptions struct {
	Dir      datadir.Dir
	NodeName string
	NodeIPs  []netip.Addr
	// ClusterDomain is the domain of the cluster's names.
	ClusterDomain string
	// ServiceCIDRs are the ranges of Service addresses. The first address of each belongs
	// to the API's own Service.
	ServiceCIDRs []netip.Prefix
	// SANs are further names and addresses of the API: those of --tls-san, and those that
	// the user has set to bind to and to advertise. Empty ones are left out.
	SANs  []string
	Clock *Clock
	// Etcd adds the authorities and certificates of an etcd member.
	Etcd bool
}

// Files are the paths of the files of a server's PKI. All of them are in PEM. The files
// of leaves have the chain, too.
type Files struct {
	// ServerCAFile verifies the API server's certificate.
	ServerCAFile, ServerCAKeyFile string
	// ClientCAFile verifies all certificates of nodes, including the kubelets' serving
	// ones, and those of other clients.
	ClientCAFile, ClientCAKeyFile string
	// RootCAFile is what pods verify the certificates of the API server and of the
	// kubelets with: ca.crt of service accounts.
	RootCAFile string
	// The signers are for upstream's signing controllers, which refuse a file with more
	// than one certificate, such as that of an intermediate authority
	// (pkg/controller/certificates/signer/ca_provider.go). The keys are those above.
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/certificates/signer/ca_provider.go caProvider.setCA
	ServerSignerFile, ClientSignerFile string
	// RequestHeaderCAFile verifies ProxyClientCertFile.
	RequestHeaderCAFile string
	// ServiceAccountKeyFile signs and verifies service-account tokens.
	ServiceAccountKeyFile string
	// EncryptionKeyFile holds the key under which the keys of encrypted Secrets are
	// encrypted.
	EncryptionKeyFile string

	// The pairs below are renewed while the server runs. ServingCertificate reloads the
	// first. Upstream's code that uses the others reloads them:

	ServingCertFile, ServingKeyFile string
	// KubeletClient is read for each connection, at most once a second
	// (k8s.io/client-go/transport/transport.go, cachingCertificateLoader). Upstream's
	// cert_rotation.go closes the connections made with the old one.
	//upstream:relies-on k8s.io/client-go/transport/transport.go cachingCertificateLoader
	//upstream:relies-on k8s.io/client-go/transport/cert_rotation.go dynamicClientCert.loadClientCert
	KubeletClientCertFile, KubeletClientKeyFile string
	// ProxyClient is watched with inotify
	// (k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_serving_content.go, called
	// by k8s.io/kube-aggregator/pkg/apiserver/apiserver.go).
	//upstream:relies-on k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_serving_content.go DynamicCertKeyPairContent.Run
	//upstream:relies-on k8s.io/kube-aggregator/pkg/apiserver/apiserver.go completedConfig.NewWithDelegate
	ProxyClientCertFile, ProxyClientKeyFile string
	// KubeletServing is watched in the same way (Kubernetes's
	// pkg/kubelet/certificate/kubelet.go, NewKubeletServerCertificateDynamicFileManager).
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/certificate/kubelet.go NewKubeletServerCertificateDynamicFileManager
	KubeletServingCertFile, KubeletServingKeyFile string

	// Etcd is empty without ServerOptions.Etcd.
	Etcd EtcdFiles
}

// Server is the PKI of a server. Its methods may be called from several
// goroutines.
type Server struct {
	Files

	clock    *Clock
	serverCA *authority
	clientCA *authority
	// etcdCA is the authority of etcd's clients, nil without ServerOptions.Etcd.
	etcdCA  *authority
	serving atomic.Pointer[tls.Certificate]
	// admin is the certificate in the kubeconfigs.
	admin atomic.Pointer[tls.Certificate]
	// node is the certificate with which this server's node calls other servers.
	node atomic.Pointer[tls.Certificate]

	// mu is held while files are written. It guards the fields below it up to
	// kubeconfigs.
	mu          sync.Mutex
	leaves      []*leaf
	servingLeaf *leaf
	adminLeaf   *leaf
	nodeLeaf    *leaf
	kubeconfigs []KubeconfigFile

	// The names and addresses in the leaves. They do not change.
	nodeName string
	nodeIPs  []netip.Addr
	apiNames []string
	reserved reserved
}

// EnsureServer makes what is missing of a server's PKI in the data directory, renews what
// expires soon, and returns the whole. It uses authorities and keys that a user has put
// there. Its errors name the faulty file.
func EnsureServer(o ServerOptions) (*Server, error) {
	folder := o.Dir.ServerTLS()
	server := func(name string) string { return filepath.Join(folder, name) }
	s := &Server{
		clock:    o.Clock,
		nodeName: o.NodeName,
		nodeIPs:  o.NodeIPs,
		apiNames: apiNames(o),
		reserved: reservedFor(o.ClusterDomain, o.ServiceCIDRs),
	}
	now := o.Clock.Now()
	authorities := map[string]*authority{}
	for _, name := range []string{"server-ca", "client-ca", "request-header-ca"} {
		a, err := ensureAuthority(server(name), "kedge-"+name, now)
		if err != nil {
			return nil, fmt.Errorf("ensure certificate authority: %w", err)
		}
		authorities[name] = a
	}
	s.serverCA, s.clientCA = authorities["server-ca"], authorities["client-ca"]
	clientCA, headerCA := s.clientCA, authorities["request-header-ca"]

	s.servingLeaf = s.leaf(server("serving-kube-apiserver"), s.serverCA, pkix.Name{CommonName: "kube-apiserver"}, s.servingNames)
	s.adminLeaf = s.leaf(server("client-admin"), clientCA,
		pkix.Name{CommonName: AdminUser, Organization: []string{AdminGroup}}, nil)
	kubeletClient := s.leaf(server("client-kube-apiserver"), clientCA,
		pkix.Name{CommonName: KubeletClientUser, Organization: []string{KubeletClientGroup}}, nil)
	proxyClient := s.leaf(server("client-auth-proxy"), headerCA, pkix.Name{CommonName: ProxyClientUser}, nil)
	// The clients' authority signs it, because nodes choose their names and addresses: a
	// node must not get a certificate that passes for the API server's.
	kubeletServing := s.leaf(filepath.Join(o.Dir.AgentTLS(), "serving-kubelet"), clientCA,
		pkix.Name{CommonName: NodeUser(o.NodeName), Organization: []string{NodesGroup, RegistrationGroup(ServerRegistration)}}, s.kubeletNames)
	s.nodeLeaf = s.leaf(filepath.Join(o.Dir.AgentTLS(), "client-kubelet"), clientCA,
		pkix.Name{CommonName: NodeUser(o.NodeName), Organization: []string{NodesGroup, NodeGroup(o.NodeName), RegistrationGroup(ServerRegistration)}}, nil)

	s.Files = Files{
		ServerCAFile: s.serverCA.certFile, ServerCAKeyFile: s.serverCA.keyFile,
		ClientCAFile: clientCA.certFile, ClientCAKeyFile: clientCA.keyFile,
		RootCAFile:            server("kube-root-ca.crt"),
		RequestHeaderCAFile:   headerCA.certFile,
		ServiceAccountKeyFile: server("service.key"),
		ServingCertFile:       s.servingLeaf.certFile, ServingKeyFile: s.servingLeaf.keyFile,
		KubeletClientCertFile: kubeletClient.certFile, KubeletClientKeyFile: kubeletClient.keyFile,
		ProxyClientCertFile: proxyClient.certFile, ProxyClientKeyFile: proxyClient.keyFile,
		KubeletServingCertFile: kubeletServing.certFile, KubeletServingKeyFile: kubeletServing.keyFile,
	}
	if o.Etcd {
		if err := s.addEtcd(o.Dir.EtcdTLS(), now); err != nil {
			return nil, err
		}
	}
	var err error
	if s.ServerSignerFile, err = s.serverCA.signerFile(); err != nil {
		return nil, err
	}
	if s.ClientSignerFile, err = clientCA.signerFile(); err != nil {
		return nil, err
	}
	if err := s.writeRootCA(); err != nil {
		return nil, err
	}
	if s.EncryptionKeyFile, err = ensureEncryptionKey(folder, s.serverCA.keyFile); err != nil {
		return nil, err
	}
	// RSA, though ECDSA would be faster: clouds that federate with the cluster's service
	// accounts by OIDC all accept RS256, and not all accept ES256.
	if _, err := ensureKey(s.ServiceAccountKeyFile, rsaKey); err != nil {
		return nil, fmt.Errorf("ensure service-account key: %w", err)
	}
	_, err = s.Renew(false)
	return s, err
}

// leaf adds a leaf in path.crt and path.key. It is a server's if it has names, else a
// client's.
func (s *Server) leaf(path string, signer *authority, subject pkix.Name, names func() sans) *leaf {
	l := &leaf{
		certFile: path + ".crt", keyFile: path + ".key",
		signer: signer, subject: subject,
		usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, names: names,
	}
	if names == nil {
		l.usage, l.names = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, func() sans { return sans{} }
	}
	s.leaves = append(s.leaves, l)
	return l
}

// apiNames are the names of the API that do not change while a server runs.
func apiNames(o ServerOptions) []string {
	names := append([]string{
		"kubernetes", "kubernetes.default", APIName,
		"kubernetes.default.svc." + o.ClusterDomain,
		"localhost", "127.0.0.1", "::1", o.NodeName,
	}, o.SANs...)
	for _, cidr := range o.ServiceCIDRs {
		names = append(names, cidr.Masked().Addr().Next().String())
	}
	return names
}

func (s *Server) servingNames() sans { return splitNames(s.apiNames, s.nodeIPs) }

func (s *Server) kubeletNames() sans { return splitNames([]string{s.nodeName}, s.nodeIPs) }

// ServingCertificate returns the newest certificate of the API. It has the form of
// tls.Config.GetCertificate.
func (s *Server) ServingCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.serving.Load(), nil
}

// NodeTLS returns the TLS settings with which this server's node calls other servers.
// They always use the newest certificate of the node.
func (s *Server) NodeTLS() *tls.Config {
	config := s.apiTLS()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return s.node.Load(), nil
	}
	return config
}

// UserTLS returns the TLS settings with which this server calls other servers as a user
// who is in groups. A server has the authority to be any user.
func (s *Server) UserTLS(user string, groups ...string) *tls.Config {
	config := s.apiTLS()
	config.GetClientCertificate = s.userCertificate(user, groups)
	return config
}

// KubeletTLS returns the TLS settings with which this server calls kubelets as a user.
// The name that is dialed must be in the kubelet's certificate.
func (s *Server) KubeletTLS(user string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool(s.clientCA.bundle), Time: s.clock.Now, GetClientCertificate: s.userCertificate(user, nil)}
}

// userCertificate returns a function that makes the certificate of a user for each
// connection, and keeps it nowhere.
func (s *Server) userCertificate(user string, groups []string) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	groups = append(slices.Clone(groups), RegistrationGroup(ServerRegistration))
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		key, err := ecdsaKey()
		if err != nil {
			return nil, fmt.Errorf("make key: %w", err)
		}
		chain, err := s.clientCA.sign(key.Public(), pkix.Name{CommonName: user, Organization: groups},
			[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, sans{}, s.clock.Now())
		if err != nil {
			return nil, fmt.Errorf("sign certificate: %w", err)
		}
		return certificate(chain, key), nil
	}
}

// apiTLS returns TLS settings that trust the other servers of the cluster.
func (s *Server) apiTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool(s.serverCA.bundle), ServerName: APIName, Time: s.clock.Now}
}

// ServerCA returns the content of ServerCAFile.
func (s *Server) ServerCA() []byte { return encodeCertificates(s.serverCA.bundle...) }

// ClientCA returns the content of ClientCAFile.
func (s *Server) ClientCA() []byte { return encodeCertificates(s.clientCA.bundle...) }

// Due returns when the first certificate is to be renewed. Zero means never.
func (s *Server) Due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due time.Time
	for _, l := range s.leaves {
		if !l.due.IsZero() && (due.IsZero() || l.due.Before(due)) {
			due = l.due
		}
	}
	return due
}

// Renew issues again every leaf that needs it, or all of them, with new keys. It rewrites
// the kubeconfigs if their certificate is new. A failure of one leaf does not stop the
// others. Renew returns the files of the new leaves.
func (s *Server) Renew(all bool) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	// At the same time, so that the leaves share the disk's syncs, which are the slow
	// part on an SD card.
	var working sync.WaitGroup
	faults := make([]error, len(s.leaves))
	renewed := make([]string, len(s.leaves))
	for i, l := range s.leaves {
		working.Go(func() {
			var cert *tls.Certificate
			issued := true
			var err error
			if all {
				cert, err = l.replace(now)
			} else {
				cert, issued, err = l.ensure(now)
			}
			if err != nil {
				faults[i] = fmt.Errorf("renew certificate: %w", err)
				return
			}
			l.due = l.dueOf(cert.Leaf)
			if issued {
				renewed[i] = l.certFile
			}
			switch l {
			case s.servingLeaf:
				s.serving.Store(cert)
			case s.adminLeaf:
				s.admin.Store(cert)
			case s.nodeLeaf:
				s.node.Store(cert)
			}
		})
	}
	working.Wait()
	for _, file := range s.kubeconfigs {
		// writeKubeconfig compares with the file, so a write that failed earlier is made
		// up for.
		faults = append(faults, s.writeKubeconfig(file))
	}
	return slices.DeleteFunc(renewed, func(file string) bool { return file == "" }), errors.Join(faults...)
}
