// Package peers has the nodes of a cluster give each other the images that they
// have (--embedded-registry): each serves what is in its containerd to the others,
// and asks them before it asks registries. The agent package makes it.
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
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/objectcache"
	"github.com/kedge-dev/kedge/internal/pki"
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
	// TLS shows the node's own client certificate, and has the time.
	TLS *tls.Config
}

// Peers is the component. As an http.RoundTripper it asks the other nodes, and
// finds nothing before it runs.
type Peers struct {
	cfg       Config
	log       *logrus.Entry
	transport *http.Transport
	nodes     atomic.Pointer[listers.NodeLister]
	// unreachable has when a node, by its name, could not be reached.
	unreachable sync.Map
}

// New makes the component.
func New(cfg Config) *Peers {
	p := &Peers{cfg: cfg, log: logrus.WithField("component", "peers")}
	p.transport = &http.Transport{
		DialTLSContext:      p.dial,
		IdleConnTimeout:     idle,
		MaxIdleConnsPerHost: 3, // containerd's downloads at a time
		// A node that hangs must not hang the others.
		ResponseHeaderTimeout: headerTimeout,
		DisableCompression:    true,
	}
	return p
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
	defer p.transport.CloseIdleConnections()

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

// serverTLS lets nobody in who has no certificate of a node.
func (p *Peers) serverTLS(*tls.ClientHelloInfo) (*tls.Config, error) {
	authority, err := p.authority()
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(p.cfg.CertFile, p.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate of this node: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Time:         p.cfg.TLS.Time,
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    authority,
		NextProtos:   []string{"http/1.1"},
	}, nil
}

// admit lets nodes in that the cluster has.
func (p *Peers) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, err := pki.NodeOfSubject(r.TLS.PeerCertificates[0].Subject)
		if err == nil {
			_, err = (*p.nodes.Load()).Get(name)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const (
	// idle is how long a connection to another node is kept.
	idle = 30 * time.Second
	// dialTimeout and headerTimeout are short: registries are there, too.
	dialTimeout   = 2 * time.Second
	headerTimeout = 5 * time.Second
)
