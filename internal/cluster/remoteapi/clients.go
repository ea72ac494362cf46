package remoteapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Dialer connects to one of the cluster's servers. It ignores the address.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Clients makes connections to the API of other machines. Each connection has the
// certificate of the user that calls.
type Clients struct {
	tls     func(user string, groups ...string) *tls.Config
	servers Dialer

	mu sync.Mutex
	// transports and dialers are those of users.
	transports map[string]http.RoundTripper
	dialers    map[string]*dialer
}

// dialer makes the connections of one user. closed is when they were last closed.
type dialer struct {
	*connrotation.Dialer
	closed time.Time
}

// NewClients returns clients that reach the servers with a dialer. tls returns the TLS
// settings with a user's certificate. A user must always be in the same groups.
func NewClients(servers Dialer, tls func(user string, groups ...string) *tls.Config) *Clients {
	return &Clients{
		tls:        tls,
		servers:    servers,
		transports: map[string]http.RoundTripper{},
		dialers:    map[string]*dialer{},
	}
}

// ClientConfig returns the configuration with which a user calls the API.
func (c *Clients) ClientConfig(user string, groups ...string) *rest.Config {
	return &rest.Config{
		// The dialer knows the address of a server.
		Host: "https://" + pki.APIName,
		// Not client-go's own transport, which judges certificates by the system's clock.
		Transport: c.transport(user, groups),
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		// API priority and fairness already protects the server.
		QPS: -1,
	}
}

// transport returns a user's transport. Each user has only one.
func (c *Clients) transport(user string, groups []string) http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.transports[user]
	if t == nil {
		dialer := &dialer{Dialer: connrotation.NewDialer(c.servers.DialContext)}
		// The defaults ping idle HTTP/2 connections, so that dead ones are found.
		t = utilnet.SetTransportDefaults(&http.Transport{
			Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
			DialContext:     dialer.DialContext,
			TLSClientConfig: c.tls(user, groups...),
		})
		c.transports[user], c.dialers[user] = t, dialer
	}
	return t
}

// Reconnect closes all connections, so that new ones show new certificates.
func (c *Clients) Reconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, dialer := range c.dialers {
		dialer.CloseAll()
	}
}

// ReconnectUser closes the connections of a user, because a request that began at a time got
// no answer: after a pause of the network, a new connection works sooner than an old one.
// It does nothing if they have been closed since then, so that requests that fail together
// leave the new connections alone.
func (c *Clients) ReconnectUser(user string, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if dialer := c.dialers[user]; dialer != nil && began.After(dialer.closed) {
		dialer.CloseAll()
		dialer.closed = time.Now()
	}
}
