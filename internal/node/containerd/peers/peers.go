// Package peers makes the nodes of a cluster share their images (--embedded-registry). Each node
// serves the content of its containerd to the others, and asks them before it asks registries. The
// agent package creates it.
//
// Content with a digest may come from any node, because the digest is checked. Only servers are
// asked what a tag stands for. Otherwise root on one node could make every node run another image
// while a registry cannot be reached.
package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// Port is the port on which nodes serve each other. k3s uses the same one.
const Port = 5001

// Config is what New needs.
type Config struct {
	NodeName string
	// Informers provide the nodes of the cluster.
	Informers objectcache.Source
	// Store returns containerd's content and images. It is called when containerd is ready.
	Store func() (content.Store, images.Store)
	// CertFile and KeyFile are the node's serving certificate. CAFile is the authority that
	// signs all nodes' certificates. They are read for each connection.
	CertFile, KeyFile, CAFile string
	// ServerCertificate returns a server's certificate of the API, which proves to the other
	// nodes that this node is a server. It is nil on agents.
	ServerCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// TLS is how this node connects to servers: with the node's client certificate, a check of
	// the server's certificate, and the clock to use.
	TLS *tls.Config
}

// Peers is the component. As an http.RoundTripper it asks the other nodes. Before Run it finds
// nothing.
type Peers struct {
	cfg Config
	log *logrus.Entry
	// content is for connections to any node, tags for connections to servers.
	content, tags *http.Transport
	nodes         atomic.Pointer[listers.NodeLister]
	// unreachable has the time of the last failed connection, by the node's name.
	unreachable sync.Map
}

// New returns the component.
func New(cfg Config) *Peers {
	p := &Peers{cfg: cfg, log: logrus.WithField("component", "peers")}
	p.content, p.tags = newTransport(p.dialNode), newTransport(p.dialServer)
	return p
}

func newTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialTLSContext:      dial,
		IdleConnTimeout:     idle,
		MaxIdleConnsPerHost: 3, // the number of containerd's parallel downloads
		// A request to a node that hangs must fail soon, so that another node is asked.
		ResponseHeaderTimeout: headerTimeout,
		DisableCompression:    true,
	}
}

// Name implements component.Component.
func (*Peers) Name() string { return "peers" }

// Run implements component.Component.
func (p *Peers) Run(ctx context.Context, ready func()) error {
	factory, err := p.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	nodes := factory.Core().V1().Nodes()
	lister, synced := nodes.Lister(), nodes.Informer().HasSyncedChecker()
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", synced) {
		return nil
	}
	p.nodes.Store(&lister)
	defer p.content.CloseIdleConnections()
	defer p.tags.CloseIdleConnections()

	// The node listens only now, because nodes that ask do not wait long for an answer.
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(Port))
	if err != nil {
		return fmt.Errorf("listen for other nodes, for embedded-registry: %w: stop the process that uses the port", err)
	}
	defer listener.Close()
	content, images := p.cfg.Store()
	server := &http.Server{
		Handler:           p.admit(&handler{content: content, images: images}),
		TLSConfig:         &tls.Config{GetConfigForClient: p.serverTLS},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       2 * idle, // so that the client closes first
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	ready()
	select {
	case <-ctx.Done():
		server.Close() // a client that is reading continues from another node
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serve other nodes: %w", err)
	}
}

// authority returns the authority that signs all nodes' certificates.
func (p *Peers) authority() (*x509.CertPool, error) {
	text, err := os.ReadFile(p.cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read authority of nodes: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("read authority of nodes: no certificate in " + p.cfg.CAFile)
	}
	return pool, nil
}

// serverTLS accepts only clients with a node's certificate. To a client that asks for a server, it
// shows the server's certificate if this node is one.
func (p *Peers) serverTLS(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	authority, err := p.authority()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		Time:           p.cfg.TLS.Time,
		GetCertificate: p.cfg.ServerCertificate,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      authority,
		NextProtos:     []string{"http/1.1"},
	}
	if hello.ServerName == pki.APIName && p.cfg.ServerCertificate != nil {
		return config, nil
	}
	certificate, err := tls.LoadX509KeyPair(p.cfg.CertFile, p.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate of this node: %w", err)
	}
	config.GetCertificate, config.Certificates = nil, []tls.Certificate{certificate}
	return config, nil
}

// admit refuses nodes that are not in the cluster.
func (p *Peers) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := p.judge(r.TLS.PeerCertificates[0]); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// judge returns the node of a certificate that has been verified. It fails if the cluster has no
// such node, or if the certificate belongs to an earlier registration of the node. It checks the
// nodes that call this node and the nodes that this node calls.
func (p *Peers) judge(certificate *x509.Certificate) (*corev1.Node, error) {
	name, err := pki.NodeOfSubject(certificate.Subject)
	if err != nil {
		return nil, err
	}
	node, err := (*p.nodes.Load()).Get(name)
	if err != nil {
		return nil, err
	}
	// Nodes that an older kedge admitted have no annotation yet.
	_, uid, _ := pki.RegistrationOf(certificate.Subject)
	if mark := node.Annotations[registration.NodeAnnotation]; mark != "" && uid != mark && uid != pki.ServerRegistration {
		return nil, fmt.Errorf("this certificate is of an earlier registration of node %s, which has ended", name)
	}
	return node, nil
}

const (
	// idle is how long an unused connection to another node is kept.
	idle = 30 * time.Second
	// dialTimeout and headerTimeout are short, because the registries can be asked instead.
	dialTimeout   = 2 * time.Second
	headerTimeout = 5 * time.Second
)
