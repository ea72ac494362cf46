package agent

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/kedge-dev/kedge/internal/pki"
)

// Dialer connects to one of the cluster's servers, whatever the address.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// remote makes connections to the API of other machines, each with the
// certificate of the user that calls. It implements Clients.
type remote struct {
	identity *pki.Node
	dialer   *connrotation.Dialer

	mu         sync.Mutex
	transports map[string]http.RoundTripper
}

func newRemote(identity *pki.Node, servers Dialer) *remote {
	return &remote{
		identity:   identity,
		dialer:     connrotation.NewDialer(servers.DialContext),
		transports: map[string]http.RoundTripper{},
	}
}

// ClientConfig implements Clients. The groups are those of the certificate.
func (r *remote) ClientConfig(user string, _ ...string) *rest.Config {
	return &rest.Config{
		// The dialer knows where that is.
		Host: "https://" + pki.APIName,
		// Not client-go's own: that judges certificates by the system's clock.
		Transport: r.transport(user),
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		// API priority and fairness protects the server, and fairly.
		QPS: -1,
	}
}

// transport returns the one transport of a user.
func (r *remote) transport(user string) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.transports[user]
	if t == nil {
		// Its defaults ping idle HTTP/2 connections, so that dead ones are found.
		t = utilnet.SetTransportDefaults(&http.Transport{
			Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
			DialContext:     r.dialer.DialContext,
			TLSClientConfig: r.identity.TLS(user),
		})
		r.transports[user] = t
	}
	return t
}

// reconnect closes all connections, so that new ones show new certificates.
func (r *remote) reconnect() { r.dialer.CloseAll() }
