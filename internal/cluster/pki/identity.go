package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// ErrNotJoined says that a node has no certificates.
var ErrNotJoined = errors.New("this node has not joined a cluster")

// Node is the PKI of an agent: keys that never leave the node, the certificates that a
// server signed for them, and the authorities that the node trusts. Its methods may be
// called from several goroutines.
type Node struct {
	name   string
	folder string
	clock  *Clock

	current atomic.Pointer[nodeCertificates]
}

// nodeCertificates are all the certificates of a node at one time.
type nodeCertificates struct {
	// clients and serving are always of the same node.
	clients map[string]*tls.Certificate // by user
	serving *x509.Certificate
	// registered says that all certificates carry the UID of a registration.
	registered bool
	// servers are the authorities of the API.
	servers *x509.CertPool
	// authorities identifies what the node trusts, as Server.Authorities does.
	authorities string
	// incomplete says that a certificate is missing.
	incomplete bool
	// rekeyed are the certificates whose key is the one in nextKeyFile.
	rekeyed []NodeCertificate
}

// NewNode returns the PKI of the node called name, kept in the data directory. It has no
// certificates until Load or Accept succeeds.
func NewNode(dir datadir.Dir, name string, clock *Clock) *Node {
	return &Node{name: name, folder: dir.AgentTLS(), clock: clock}
}

// ServerCAFile holds the authorities that verify certificates of the API.
func (n *Node) ServerCAFile() string { return filepath.Join(n.folder, "server-ca.crt") }

// ClientCAFile holds the authorities that verify callers of the kubelet.
func (n *Node) ClientCAFile() string { return filepath.Join(n.folder, "client-ca.crt") }

// ServingCertFile holds the kubelet's serving certificate. Its key is in ServingKeyFile.
func (n *Node) ServingCertFile() string { return n.file("serving-kubelet") + ".crt" }

// ServingKeyFile holds the key for ServingCertFile.
func (n *Node) ServingKeyFile() string { return n.file("serving-kubelet") + ".key" }

func (n *Node) file(name string) string { return filepath.Join(n.folder, name) }

// CertFiles returns the files of all certificates.
func (n *Node) CertFiles() []string {
	var files []string
	for _, c := range NodeCertificates(n.name) {
		files = append(files, n.file(c.Name)+".crt")
	}
	return files
}

// keyFile holds a certificate's key. nextKeyFile holds the key that is to replace it,
// until the new key's certificate is there.
func (n *Node) keyFile(c NodeCertificate) string     { return n.file(c.Name) + ".key" }
func (n *Node) nextKeyFile(c NodeCertificate) string { return n.file(c.Name) + ".key.next" }

// Load reads the certificates of an earlier start. The error is ErrNotJoined if there are
// none, and otherwise says why they cannot be used.
func (n *Node) Load() error {
	ca, err := os.ReadFile(n.ServerCAFile())
	if errors.Is(err, os.ErrNotExist) {
		return ErrNotJoined
	}
	if err != nil {
		return fmt.Errorf("read authority: %w", err)
	}
	certificates := map[string][]byte{}
	for _, c := range NodeCertificates(n.name) {
		certificates[c.Name], err = os.ReadFile(n.file(c.Name) + ".crt")
		switch {
		case errors.Is(err, os.ErrNotExist) && c.User != NodeUser(n.name):
			// An older kedge did not know this certificate: the next renewal brings it.
			delete(certificates, c.Name)
		case errors.Is(err, os.ErrNotExist):
			return ErrNotJoined
		case err != nil:
			return fmt.Errorf("read certificate: %w", err)
		}
	}
	clientCA, err := os.ReadFile(n.ClientCAFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read authority of clients: %w", err)
	}
	current, err := n.check(ca, clientCA, certificates)
	if err != nil {
		return err
	}
	// A kill -9 may have come between the writing of the certificates and of the keys.
	if err := n.useKeys(current); err != nil {
		return err
	}
	n.current.Store(current)
	return nil
}

// Requests returns a certificate request for each certificate, as SignNode takes them. It
// makes the keys that are missing, or, with newKeys, new keys for all certificates.
func (n *Node) Requests(newKeys bool) (map[string][]byte, error) {
	requests := map[string][]byte{}
	for _, c := range NodeCertificates(n.name) {
		key, err := n.key(c, newKeys)
		if err != nil {
			return nil, err
		}
		// The server decides what will be in the certificate.
		if requests[c.Name], err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
			return nil, fmt.Errorf("make certificate request: %w", err)
		}
	}
	return requests, nil
}

// key returns a certificate's key, or a new one that is to replace it. A key that cannot
// be read is replaced at once: nothing is lost with it.
func (n *Node) key(c NodeCertificate, replace bool) (crypto.Signer, error) {
	if replace {
		return writeKey(n.nextKeyFile(c), ecdsaKey)
	}
	if key, err := readKey(n.keyFile(c)); err == nil {
		return key, nil
	}
	return writeKey(n.keyFile(c), ecdsaKey)
}

// useKeys puts new keys in the place of the old ones, if their certificates are on disk.
func (n *Node) useKeys(current *nodeCertificates) error {
	for _, c := range current.rekeyed {
		if err := os.Rename(n.nextKeyFile(c), n.keyFile(c)); err != nil {
			return fmt.Errorf("replace key: %w", datadir.Explain(err))
		}
	}
	if len(current.rekeyed) == 0 {
		return nil
	}
	return datadir.SyncFolder(n.folder)
}

// Accept checks and keeps the certificates and authorities that a server sent, in PEM. It
// fails if they do not fit this node and its keys.
func (n *Node) Accept(serverCA, clientCA []byte, certificates map[string][]byte) error {
	current, err := n.check(serverCA, clientCA, certificates)
	if err != nil {
		return err
	}
	if current.incomplete {
		return errors.New("the server has not signed all of this node's certificates: the server's kedge is older. Upgrade the server first")
	}
	if _, err := parseCertificates(clientCA); err != nil {
		return fmt.Errorf("read authority of clients: %w", err)
	}
	var files []datadir.File
	for _, c := range NodeCertificates(n.name) {
		files = append(files, datadir.File{Path: n.file(c.Name) + ".crt", Data: certificates[c.Name], Mode: certMode})
	}
	clients := datadir.File{Path: n.ClientCAFile(), Data: clientCA, Mode: certMode}
	servers := datadir.File{Path: n.ServerCAFile(), Data: serverCA, Mode: certMode}
	if n.current.Load() == nil {
		// Last: with this file the node has joined.
		files = append(files, clients, servers)
	} else {
		// This comes first: a server that sees the new certificates knows that this node
		// trusts those of the new authorities.
		files = append([]datadir.File{clients, servers}, files...)
	}
	if err := datadir.WriteTogether(files...); err != nil {
		return err
	}
	if err := n.useKeys(current); err != nil {
		return err
	}
	n.current.Store(current)
	return nil
}

// check fails if certificates cannot be used on this node.
func (n *Node) check(serverCA, clientCA []byte, certificates map[string][]byte) (*nodeCertificates, error) {
	servers := x509.NewCertPool()
	if !servers.AppendCertsFromPEM(serverCA) {
		return nil, fmt.Errorf("read authority of servers: %w", errNoPEM)
	}
	current := &nodeCertificates{clients: map[string]*tls.Certificate{}, servers: servers, authorities: authorities(serverCA, clientCA), registered: true}
	for _, c := range NodeCertificates(n.name) {
		if _, ok := certificates[c.Name]; !ok {
			current.incomplete = true
			continue
		}
		chain, err := parseCertificates(certificates[c.Name])
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", c.Name, err)
		}
		key, err := readKey(n.nextKeyFile(c))
		if err == nil && matches(key, chain[0]) {
			current.rekeyed = append(current.rekeyed, c)
		} else if key, err = readKey(n.keyFile(c)); err != nil {
			return nil, err
		}
		switch {
		case !matches(key, chain[0]):
			return nil, fmt.Errorf("certificate %s does not match the key beside it", c.Name)
		case chain[0].Subject.CommonName != c.User || !slices.Contains(chain[0].Subject.Organization, NodeGroup(n.name)):
			return nil, fmt.Errorf("certificate %s belongs to another node: %s", c.Name, chain[0].Subject)
		}
		if _, uid, _ := RegistrationOf(chain[0].Subject); uid == "" {
			current.registered = false
		}
		if c.Serving {
			current.serving = chain[0]
		} else {
			current.clients[c.User] = certificate(chain, key)
		}
	}
	return current, nil
}

// Ended tells whether the certificates have expired.
func (n *Node) Ended() bool { return n.clock.Now().After(n.current.Load().serving.NotAfter) }

// Due returns when the certificates are to be renewed.
func (n *Node) Due() time.Time { return renewFrom(n.current.Load().serving) }

// WantsRenewal tells whether the certificates expire soon, are not for the node's
// addresses, or are not complete.
func (n *Node) WantsRenewal(ips []netip.Addr) bool {
	current := n.current.Load()
	return current.incomplete || !n.clock.Now().Before(n.Due()) || !sansOf(current.serving).equal(splitNames([]string{n.name}, ips))
}

// Registered tells whether the certificates are tied to a registration of the node. Those
// that an older kedge signed are not.
func (n *Node) Registered() bool { return n.current.Load().registered }

// Follows tells whether the node trusts the authorities that a server identifies by
// Authorities.
func (n *Node) Follows(authorities string) bool { return n.current.Load().authorities == authorities }

// TLS returns the TLS settings with which the node calls servers as one of its users.
// They always use the newest certificate and authorities, and the Clock's time.
func (n *Node) TLS(user string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: APIName,
		Time:       n.clock.Now,
		// RootCAs cannot change later, so VerifyConnection does what the standard library
		// would do with the newest authorities.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: n.current.Load().servers, Intermediates: pool(state.PeerCertificates[1:]),
				DNSName: APIName, CurrentTime: n.clock.Now(),
			})
			return err
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := n.current.Load().clients[user]; c != nil {
				return c, nil
			}
			return nil, fmt.Errorf("this node has no certificate of user %s", user)
		},
	}
}
