package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/net/http2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// handshakeTimeout bounds the time to open a tunnel.
const handshakeTimeout = 10 * time.Second

// How many bytes a server may have sent that a pod has not taken yet, for one stream and
// for all. The sum is large enough that a few streams that stand still do not hold up the
// others.
const (
	streams      = 1000
	streamWindow = 256 << 10
	// frame is the size of the buffer that the server takes for each stream.
	frame = 32 << 10
)

// Servers knows the servers of the cluster.
type Servers interface {
	// Servers returns their addresses, HOST:PORT, and a channel that is closed when they
	// change.
	Servers() (addresses []string, changed <-chan struct{})
}

// Mesh serves a node's end of a stream of the mesh. server is the address of the server.
type Mesh func(ctx context.Context, server netip.Addr, stream io.ReadWriteCloser) error

// AgentConfig is what an Agent has to know.
type AgentConfig struct {
	NodeName    string
	NodeIPs     []netip.Addr
	KubeletPort int
	// PodCIDRs limit the addresses that pods may claim. Empty if another CNI assigns
	// them.
	PodCIDRs []netip.Prefix
	// Client reads the node's own pods.
	Client  *rest.Config
	Servers Servers
	// TLS has the cluster's authority and the node's certificate.
	TLS *tls.Config
	// Opened, if it is not nil, is called each time a tunnel is open.
	Opened func()
	// Mesh, if it is not nil, serves the stream of the mesh that a server opens, until the stream ends.
	Mesh Mesh
}

// Agent is the component that keeps a tunnel to every server.
type Agent struct {
	cfg AgentConfig
	log *logrus.Entry

	mu sync.Mutex
	// faults say for each server why there is no tunnel. They are nil where there is one.
	faults map[string]error
}

// NewAgent makes the component.
func NewAgent(cfg AgentConfig) *Agent {
	return &Agent{cfg: cfg, log: logrus.WithField("component", "tunnel"), faults: map[string]error{}}
}

// Name implements component.Component.
func (a *Agent) Name() string { return "tunnel" }

// Run implements component.Component. It is ready when the first tunnel is open. It never
// gives up.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	api, err := kubernetes.NewForConfig(a.cfg.Client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	a.run(ctx, api, sync.OnceFunc(ready))
	return nil
}

func (a *Agent) run(ctx context.Context, api kubernetes.Interface, ready func()) {
	allowed := &targets{
		nodeName: a.cfg.NodeName, nodeIPs: a.cfg.NodeIPs, kubeletPort: uint16(a.cfg.KubeletPort),
		podCIDRs: a.cfg.PodCIDRs, api: api,
	}
	var all sync.WaitGroup
	defer all.Wait()
	kept := map[string]context.CancelFunc{}
	for {
		servers, changed := a.cfg.Servers.Servers()
		known := map[string]bool{}
		for _, server := range servers {
			known[server] = true
			if kept[server] == nil {
				keep, cancel := context.WithCancel(ctx)
				kept[server] = cancel
				all.Go(func() { a.keep(keep, server, allowed, ready) })
			}
		}
		for server, cancel := range kept {
			if !known[server] {
				cancel()
				delete(kept, server)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			for _, cancel := range kept {
				cancel()
			}
			return
		}
	}
}

// keep opens the tunnel to a server again whenever it ends, until ctx is cancelled.
func (a *Agent) keep(ctx context.Context, server string, allowed *targets, ready func()) {
	defer a.forget(ctx, server)
	log := a.log.WithField("server", server)
	loop.Stream(log).Run(ctx, func(ctx context.Context) (loop.Next, error) {
		err := a.serve(ctx, server, allowed, func() {
			log.Info("The tunnel is open")
			a.note(ctx, server, nil)
			ready()
			if a.cfg.Opened != nil {
				a.cfg.Opened()
			}
		})
		if ctx.Err() == nil {
			a.note(ctx, server, err)
		}
		return loop.Next{}, err
	})
}

// note keeps why there is no tunnel to a server, or nil if it is open.
func (a *Agent) note(ctx context.Context, server string, fault error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults[server] = fault
	component.Report(ctx, a.faultLocked())
}

// forget drops what is known of a server that is none any more.
func (a *Agent) forget(ctx context.Context, server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.faults, server)
	component.Report(ctx, a.faultLocked())
}

// faultLocked returns that the node was deleted or revoked, or why no tunnel is open, or nil.
func (a *Agent) faultLocked() (first error) {
	open := false
	for _, server := range slices.Sorted(maps.Keys(a.faults)) {
		switch fault := a.faults[server]; {
		case errors.Is(fault, errFormer):
			return fault
		case fault == nil:
			open = true
		case first == nil:
			first = fault
		}
	}
	if open {
		return nil
	}
	return first
}

// serve opens a tunnel and dials for the server until the tunnel breaks. It always fails.
func (a *Agent) serve(ctx context.Context, address string, allowed *targets, opened func()) error {
	conn, err := open(ctx, address, a.cfg.TLS)
	if err != nil {
		return fmt.Errorf("open tunnel to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	opened()
	handler := &dialer{targets: allowed}
	if host, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil && a.cfg.Mesh != nil {
		handler.mesh = func(ctx context.Context, stream io.ReadWriteCloser) error {
			return a.cfg.Mesh(ctx, host.Addr(), stream)
		}
	}
	server, err := newHTTPServer(ctx, handler)
	if err != nil {
		return err
	}
	_ = server.Serve(&listener{conn: conn})
	handler.end()
	return fmt.Errorf("the tunnel to %s has ended", address)
}

// newHTTPServer makes the server of a tunnel's HTTP/2.
func newHTTPServer(ctx context.Context, handler http.Handler) (*http.Server, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // TLS is in the layer below
	server := &http.Server{
		Protocols:   &protocols,
		Handler:     handler,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(io.Discard, "", 0),
	}
	// golang.org/x/net/http2, not http.Server.HTTP2: the latter takes no
	// buffer per connection of 4 MiB or more.
	err := http2.ConfigureServer(server, &http2.Server{
		MaxConcurrentStreams:         streams,
		MaxReadFrameSize:             frame,
		MaxUploadBufferPerStream:     streamWindow,
		MaxUploadBufferPerConnection: streamWindow * streams,
		ReadIdleTimeout:              pingAfter,
		PingTimeout:                  pingPatience,
	})
	if err != nil {
		return nil, fmt.Errorf("configure HTTP/2: %w", err)
	}
	return server, nil
}
