package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// acquire returns the server that answers, and what to call when it has.
func (a *APIServer) acquire() (*serving, func()) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.serving == nil {
		return nil, nil
	}
	a.serving.requests.Add(1)
	return a.serving, a.serving.requests.Done
}

// ServeHTTP answers requests from outside this process. It answers with 503 before the
// server can and after it has stopped, and as long as the authorizer does not know all
// roles: it would forbid what is allowed. Checks of health are answered before.
func (a *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.RLock()
	served := a.serving
	a.mu.RUnlock()
	health := slices.ContainsFunc(healthPaths, func(path apiserver.AnonymousAuthCondition) bool { return path.Path == r.URL.Path })
	if served != nil && !health && !served.open.Load() {
		if !served.authorizes() {
			unavailable(w)
			return
		}
		served.open.Store(true)
	}
	a.serve(w, r)
}

// serve answers requests of this process too.
func (a *APIServer) serve(w http.ResponseWriter, r *http.Request) {
	served, release := a.acquire()
	if served == nil {
		unavailable(w)
		return
	}
	defer release()
	// As upstream's GoawayFilter: the client's next request goes by a connection
	// that it opens then, to another server if its way has others.
	if r.ProtoMajor == 2 && served.stopping.Err() != nil {
		w.Header().Set("Connection", "close")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(served.ctx, cancel)()
	served.handler.ServeHTTP(w, r.WithContext(ctx))
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1") // client-go waits so many seconds
	http.Error(w, "the API server is starting or stopping", http.StatusServiceUnavailable)
}

// Certificate returns the certificate for a server name that is the API
// server's own, by the user's tls-sni-cert-key. It returns nil for any other,
// which the supervisor has its own certificate for.
func (a *APIServer) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.RLock()
	certificates := a.certificates
	a.mu.RUnlock()
	if hello.ServerName == "" {
		return nil, nil
	}
	for _, provider := range certificates {
		certificate, err := match(provider, hello.ServerName)
		if certificate != nil || err != nil {
			return certificate, err
		}
	}
	return nil, nil
}

// match returns the provider's certificate if it is for name. Its own list of
// names goes before those in the certificate, as upstream has it
// (apiserver/pkg/server/dynamiccertificates/named_certificates.go).
func match(provider dynamiccertificates.SNICertKeyContentProvider, name string) (*tls.Certificate, error) {
	names := provider.SNINames()
	listed := false
	for _, pattern := range names {
		listed = listed || matchesName(pattern, name)
	}
	if len(names) > 0 && !listed {
		return nil, nil
	}
	certificate, err := tls.X509KeyPair(provider.CurrentCertKeyContent())
	if err != nil {
		return nil, fmt.Errorf("load certificate of %s: %w", provider.Name(), err)
	}
	if !listed && certificate.Leaf.VerifyHostname(name) != nil {
		return nil, nil
	}
	return &certificate, nil
}

// matchesName compares a server name with one that may start with *.
func matchesName(pattern, name string) bool {
	if strings.EqualFold(pattern, name) {
		return true
	}
	_, parent, found := strings.Cut(name, ".")
	return found && strings.EqualFold(pattern, "*."+parent)
}

// failingChecks picks the failing ones of the lines that /readyz answers with,
// such as
//
//	[-]etcd failed: reason withheld
func failingChecks(body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			failing = append(failing, strings.TrimRight(line, "\n"))
		}
	}
	if len(failing) == 0 {
		return strings.TrimSpace(body)
	}
	return strings.Join(failing, "\n")
}

// errNotServing is what the controllers and the scheduler fail with if they
// are started before the API server, which their ports' authentication is.
var errNotServing = errors.New("the API server is not running")
