// Follows k8s.io/apiserver v0.37.2, pkg/server/secure_serving.go.

package supervisor

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

// server returns the HTTP server. Its parameters are the same as in upstream's own
// listener: k8s.io/apiserver/pkg/server/secure_serving.go, tlsConfig and Serve. Built with Go 1.27 or later, Serve
// also sets MaxHeaderValueCount, which older versions of Go do not have.
//
//upstream:follows k8s.io/apiserver/pkg/server/secure_serving.go SecureServingInfo.tlsConfig SecureServingInfo.Serve
func (s *Supervisor) server(handler http.Handler, base context.Context) (*http.Server, error) {
	server := &http.Server{
		Handler:           handler,
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnState:         s.conns.state,
		ConnContext:       s.strangers.remember,
		ErrorLog:          log.New(&errorLog{s.log}, "", 0),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: s.cfg.Certificate,
			// Requested and not verified here: the authenticators verify it for each
			// request, and others than x509 may accept the caller.
			ClientAuth: tls.RequestClientCert,
			Time:       s.cfg.Now,
		},
	}
	const frame = 256 << 10
	const streams = 100
	// golang.org/x/net/http2, not http.Server.HTTP2: the latter does not take
	// a buffer per connection of 4 MiB or more.
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:                  90 * time.Second,
		MaxUploadBufferPerStream:     frame,
		MaxReadFrameSize:             frame,
		MaxConcurrentStreams:         streams,
		MaxUploadBufferPerConnection: frame * streams,
	})
	if err != nil {
		return nil, fmt.Errorf("configure HTTP/2: %w", err)
	}
	return server, nil
}

// keepAlive is how often an idle connection is probed, the value of
// k8s.io/apiserver/pkg/server/secure_serving.go.
//
//upstream:follows k8s.io/apiserver/pkg/server/secure_serving.go defaultKeepAlivePeriod
const keepAlive = 3 * time.Minute
