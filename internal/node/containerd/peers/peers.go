// Package peers has the nodes of a cluster give each other the images that they
// have (--embedded-registry): each serves what is in its containerd to the others,
// and asks them before it asks registries. The agent package makes it.
//
// What has a digest may come from any node, because the digest is checked. What a
// tag stands for is said by servers only: whoever is root on another node could
// otherwise have every node run an image of theirs while a registry is out of reach.
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

// Port is where nodes serve each other: k3s's for the same purpose.
const Port = 5001

// Config is what Peers depend on.
type Config struct {
	NodeName string
	// Informers tell which nodes there are.
	Informers objectcache.Source
	// Store returns what containerd has, once that runs.
	Store func() (content.Store, images.Store)
	// The node's serving certificate, and the authority of all nodes' certificates.
	// They are read for each connection.
	CertFile, KeyFile, CAFile string
	// ServerCertificate is a server's certificate of the API, by which it proves to
	// the others that it is one. It is nil on agents.
	ServerCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// TLS is how this node calls servers: it shows the node's own client certificate,
	// wants a server's, and has the time.
	TLS *tls.Config
}

// Peers is the component. As an http.RoundTripper it asks the other nodes, and
// finds nothing before it runs.
type Peers struct {
	cfg Config
	log *logrus.Entry
	// content asks nodes, and tags asks servers.
	content, tags *http.Transport
	nodes         atomic.Pointer[listers.NodeLister]
	// unreachable has when a node, by its name, could not be reached.
	unreachable sync.Map
}

// New makes the component.
func New(cfg Config) *Peers {
	p := &Peers{cfg: cfg, log: logrus.WithField("component", "peers")}
	p.content, p.tags = newTransport(p.dialNode), newTransport(p.dialServer)
	return p
}

func newTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialTLSContext:      dial,
		IdleConnTimeout:     idle,
		MaxIdleConnsPerHost: 3, // containerd's downloads at a time
		// A node that hangs must not hang the others.
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
	lister, synced := nodes.Lister(), nodes.Informer().HasSynced
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil
	}
	p.nodes.Store(&lister)
	defer p.content.CloseIdleConnections()
	defer p.tags.CloseIdleConnections()

	// Not before: who asks does not wait for long.
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(Port))
	if err != nil {
		return fmt.Errorf("listen for other nodes, which embedded-registry needs: %w: end what uses the port", err)
	}
	defer listener.Close()
	content, images := p.cfg.Store()
	server := &http.Server{
		Handler:           p.admit(&handler{content: content, images: images}),
		TLSConfig:         &tls.Config{GetConfigForClient: p.serverTLS},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       2 * idle, // the one who asks closes first
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	ready()
	select {
	case <-ctx.Done():
		server.Close() // who reads goes on from another node
		<-failed
		return nil
	case err := <-failed:
		return fmt.Errorf("serve other nodes: %w", err)
	}
}

// authority returns that of all nodes.
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

// serverTLS lets nobody in who has no certificate of a node. To those who want a
// server it shows that this is one, if it is.
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

// admit lets nodes in that the cluster has.
func (p *Peers) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := p.judge(r.TLS.PeerCertificates[0]); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// judge returns the node that a certificate is of, which has been verified, if the
// cluster has that node and the certificate is of the node's present registration. It
// is asked about all callers of this node, and about nodes that this one calls.
func (p *Peers) judge(certificate *x509.Certificate) (*corev1.Node, error) {
	name, err := pki.NodeOfSubject(certificate.Subject)
	if err != nil {
		return nil, err
	}
	node, err := (*p.nodes.Load()).Get(name)
	if err != nil {
		return nil, err
	}
	// Nodes that an older kedge has admitted have no mark yet.
	_, uid, _ := pki.RegistrationOf(certificate.Subject)
	if mark := node.Annotations[registration.NodeAnnotation]; mark != "" && uid != mark && uid != pki.ServerRegistration {
		return nil, fmt.Errorf("the registration of node %s that this certificate is of is over", name)
	}
	return node, nil
}

const (
	// idle is how long a connection to another node is kept.
	idle = 30 * time.Second
	// dialTimeout and headerTimeout are short: registries are there, too.
	dialTimeout   = 2 * time.Second
	headerTimeout = 5 * time.Second
)
