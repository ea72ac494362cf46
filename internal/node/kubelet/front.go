package kubelet

import (
	"crypto/tls"
	"net/http"
	"sync"

	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/server"
)

// serve makes the kubelet's server answer the paths of k.cfg.Paths by the handlers there.
//
// Upstream's handler of /metrics serves the metrics of the whole process. Upstream has no
// way to replace it and keeps its http.Server to itself. But each TLS handshake knows its
// server: net/http puts the server into the context. So the first handshake puts front
// before the server's handler. No request comes before a handshake, and every handshake
// waits for the first one here.
//
//upstream:relies-on std/net/http/server.go conn.serve serverHandler.ServeHTTP
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go NewMainKubelet
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/server/server.go ListenAndServeKubeletServer
func (k *Kubelet) serve(dependencies *kubelet.Dependencies) {
	// Upstream calls this option when it has made TLSConfig and before it listens.
	dependencies.Options = append(dependencies.Options, func(*kubelet.Kubelet) {
		if dependencies.TLSConfig != nil {
			front := &front{paths: k.cfg.Paths, auth: dependencies.Auth, measuring: k.measuring}
			front.standBefore(dependencies.TLSConfig)
		}
	})
}

// front answers some paths itself and passes the other requests on.
type front struct {
	paths map[string]http.Handler
	auth  server.AuthInterface
	next  http.Handler
	// measuring is told of questions about pods, if it is not nil.
	measuring *measuring
}

// standBefore puts f before the handler of the server that will use config.
func (f *front) standBefore(config *tls.Config) {
	var once sync.Once
	choose := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		once.Do(func() {
			if server, ok := hello.Context().Value(http.ServerContextKey).(*http.Server); ok {
				f.next, server.Handler = server.Handler, f
			}
		})
		if choose == nil {
			return nil, nil
		}
		return choose(hello)
	}
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, ok := f.paths[r.URL.Path]
	if !ok {
		if f.measuring != nil && isQuestion(r.URL.Path) {
			f.measuring.ask()
		}
		f.next.ServeHTTP(w, r)
		return
	}
	if status := f.admit(r); status != http.StatusOK {
		http.Error(w, http.StatusText(status), status)
		return
	}
	handler.ServeHTTP(w, r)
}
