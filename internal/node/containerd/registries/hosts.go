package registries

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// mirrorCapabilities are what a mirror that the operator chose is trusted to do.
const mirrorCapabilities = docker.HostCapabilityPull | docker.HostCapabilityResolve

// Pull describes the pull of an image.
type Pull struct {
	// Reference is the image's full name.
	Reference string
	// HostDir is containerd's folder with a hosts.toml for each registry, or empty.
	HostDir string
	// Header is sent with each request.
	Header http.Header
	// Credentials returns the pod's credentials for a host, or empty strings if it has none.
	Credentials func(host string) (user, secret string, err error)
}

// hosts returns the hosts to ask for the images of a registry, in order. Upstream's hosts.toml has
// neither rewrites nor credentials, so kedge does not use it for mirrors. A user's hosts.toml is
// still read for the registry itself.
func (s *settings) hosts(ctx context.Context, pull Pull, registry string, mirrorsOnly bool) ([]docker.RegistryHost, error) {
	origin, err := docker.DefaultHost(registry)
	if err != nil {
		return nil, err
	}
	var (
		all       []docker.RegistryHost
		endpoints []endpoint
		rewritten rewrites
	)
	if m := s.mirror(registry); m != nil {
		endpoints, rewritten = m.Endpoints, m.Rewrites
	}
	for i, e := range endpoints {
		if slices.Contains(endpoints[:i], e) {
			continue
		}
		host, err := s.endpoint(pull, e, rewritten, e.host == origin)
		if err != nil {
			return nil, fmt.Errorf("use mirror %s of %s: %w", e.host, registry, err)
		}
		all = append(all, host)
	}
	// The registry itself comes last, unless the last endpoint is the registry.
	if n := len(endpoints); n > 0 && endpoints[n-1].host == origin || mirrorsOnly && s.mirror(registry) != nil {
		return all, nil
	}
	last, err := s.origin(ctx, pull, registry, origin)
	if err != nil {
		return nil, fmt.Errorf("use registry %s: %w", registry, err)
	}
	return append(all, last...), nil
}

// endpoint returns the settings for asking a mirror. origin says that it is the registry itself.
func (s *settings) endpoint(pull Pull, e endpoint, rewritten rewrites, origin bool) (docker.RegistryHost, error) {
	secrets, err := s.config(e.host).TLS.load()
	if err != nil {
		return docker.RegistryHost{}, err
	}
	// The operator's credentials come first: a pod's are for the registry that its image names.
	credentials := firstOf(s.credentials, pull.Credentials)
	if origin {
		credentials = firstOf(pull.Credentials, s.credentials)
	}
	client := &http.Client{Transport: docker.DefaultHTTPTransport(secrets)}
	host := docker.RegistryHost{
		Client: &http.Client{Transport: client.Transport},
		Authorizer: docker.NewDockerAuthorizer(
			docker.WithAuthClient(client),
			docker.WithAuthHeader(pull.Header),
			docker.WithAuthCreds(credentials)),
		Scheme:       e.scheme,
		Host:         e.host,
		Path:         e.path,
		Capabilities: mirrorCapabilities,
	}
	if len(rewritten) > 0 {
		host.Client.Transport = &rewriter{next: client.Transport, prefix: e.path + "/", rewrites: rewritten}
	}
	return host, nil
}

// origin returns the settings for asking a registry itself, including those of its hosts.toml.
func (s *settings) origin(ctx context.Context, pull Pull, registry, host string) ([]docker.RegistryHost, error) {
	secrets, err := s.config(host).TLS.load()
	if err != nil {
		return nil, err
	}
	options := config.HostOptions{
		Credentials:    firstOf(pull.Credentials, s.credentials),
		DefaultTLS:     secrets,
		AuthorizerOpts: []docker.AuthorizerOpt{docker.WithAuthHeader(pull.Header)},
	}
	if pull.HostDir != "" {
		options.HostDir = config.HostDirFromRoot(pull.HostDir)
	}
	return config.ConfigureHosts(ctx, options)(registry)
}

// credentials returns the credentials that the file has for a host. If that host redirects to
// another one, they are not sent there.
func (s *settings) credentials(host string) (user, secret string, err error) {
	if auth := s.config(host).Auth; auth != nil {
		user, secret = auth.user, auth.secret
	}
	return user, secret, nil
}

// firstOf asks the sources in order until one has credentials.
func firstOf(sources ...func(string) (string, string, error)) func(string) (string, string, error) {
	return func(host string) (user, secret string, err error) {
		for _, source := range sources {
			if user, secret, err = source(host); err != nil || secret != "" {
				break
			}
		}
		return user, secret, err
	}
}

// load returns the settings for a TLS client, or nil if there are none.
func (t *tlsConfig) load() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	out := &tls.Config{InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		authorities, err := datadir.ReadText(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		if out.RootCAs, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("read the system's authorities: %w", err)
		}
		if !out.RootCAs.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("ca_file: %s has no certificate in PEM", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := t.loadPair()
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// loadPair reads the client's certificate and its key.
func (t *tlsConfig) loadPair() (tls.Certificate, error) {
	certificate, err := datadir.ReadText(t.CertFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := datadir.ReadText(t.KeyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}

// rewriter changes the names of repositories in requests to those that the mirror uses.
type rewriter struct {
	next     http.RoundTripper
	prefix   string
	rewrites rewrites
}

// objects are the words that follow the name of a repository in a path. The name may contain them
// too, so the last one counts.
var objects = []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"}

// RoundTrip implements http.RoundTripper.
func (r *rewriter) RoundTrip(request *http.Request) (*http.Response, error) {
	rest, ok := strings.CutPrefix(request.URL.Path, r.prefix)
	end := -1
	for _, object := range objects {
		end = max(end, strings.LastIndex(rest, object))
	}
	// The target of a redirect has names of its own.
	if redirected := request.Response != nil; ok && end > 0 && !redirected {
		request = request.Clone(request.Context())
		request.URL.Path = r.prefix + r.rewrites.apply(rest[:end]) + rest[end:]
		request.URL.RawPath = ""
	}
	return r.next.RoundTrip(request)
}
