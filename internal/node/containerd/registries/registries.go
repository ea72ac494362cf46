package registries

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/distribution/reference"
	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/folderwatch"
)

// settle is how long the file's folder must be unchanged before the file is read.
const settle = 200 * time.Millisecond

// registryPatience is how long to wait for a registry before asking other nodes. Upstream waits
// 30 seconds for a registry that cannot be reached, five times.
const registryPatience = 10 * time.Second

// Registries is the component that follows registries.yaml. A change of the file applies to the
// next pull.
type Registries struct {
	// MirrorsOnly keeps registries that the file lists as mirrors from being asked
	// themselves. Set it before Run.
	MirrorsOnly bool

	path string
	// peers are the other nodes, or nil if they do not share images.
	peers http.RoundTripper
	// patience is how long a registry may take before the peers are asked too.
	patience time.Duration
	text     []byte // the text that is in use
	said     string // the last error that was reported, empty if the file is right
	current  atomic.Pointer[settings]
	warn     func(message string)
	log      *logrus.Entry
}

// New reads the file, which need not exist. If the file is wrong, the error names each line and its
// fault. If peers is not nil, it is asked before the registries that the file lists as mirrors.
// Later, warn tells users by an Event if the file becomes wrong.
func New(path string, peers http.RoundTripper, warn func(message string)) (*Registries, error) {
	r := &Registries{path: path, peers: peers, patience: registryPatience, warn: warn, log: logrus.WithField("component", "registries")}
	now, text, err := read(path)
	if err != nil {
		return nil, err
	}
	r.text = text
	r.current.Store(now)
	return r, nil
}

// Name implements component.Component.
func (*Registries) Name() string { return "registries" }

// Run implements component.Component. If the file becomes wrong, Run reports that and keeps the
// settings that it read before.
func (r *Registries) Run(ctx context.Context, ready func()) error {
	folder := filepath.Dir(r.path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder of registries: %w", err)
	}
	changes := folderwatch.Start(ctx, folder, settle, r.log)
	r.reload() // the file may have changed since New
	ready()
	for range changes {
		r.reload()
	}
	return nil
}

// reload reports each error once, because other files in the folder may change often.
func (r *Registries) reload() {
	next, text, err := read(r.path)
	if err != nil {
		if err.Error() != r.said {
			r.said = err.Error()
			message := fmt.Sprintf("kedge keeps using the previous registries.yaml until this is corrected: %v", err)
			r.log.Error(message)
			r.warn(message)
		}
		return
	}
	r.said = ""
	if !bytes.Equal(text, r.text) {
		r.text = text
		r.current.Store(next)
		r.log.Infof("%s has changed: the next pull uses it", r.path)
	}
}

// Fetcher returns what pulls an image by the settings of the file. It returns nil if the file says
// nothing about the image's registry, so that containerd pulls the image itself.
func (r *Registries) Fetcher(pull Pull) (transfer.ImageFetcher, error) {
	name, err := reference.ParseDockerRef(pull.Reference)
	if err != nil {
		return nil, fmt.Errorf("parse image reference %q: %w", pull.Reference, err)
	}
	now, registry := r.current.Load(), reference.Domain(name)
	host, err := docker.DefaultHost(registry)
	if err != nil {
		return nil, err
	}
	if now.mirror(registry) == nil && now.config(host) == (endpointConfig{}) {
		return nil, nil
	}
	shared := r.peers != nil && now.mirror(registry) != nil
	f := &fetcher{reference: pull.Reference, resolver: docker.NewResolver(docker.ResolverOptions{
		Headers: pull.Header,
		Hosts: func(registry string) ([]docker.RegistryHost, error) {
			// Upstream uses this context only for its log. The resolver outlives the request's context.
			hosts, err := now.hosts(context.Background(), pull, registry, r.MirrorsOnly)
			if shared {
				// Content may come from any node, because its digest is checked.
				hosts = append([]docker.RegistryHost{r.peerHost(docker.HostCapabilityPull)}, hosts...)
			}
			return hosts, err
		},
	})}
	if shared {
		f.patience = r.patience
		f.peers = docker.NewResolver(docker.ResolverOptions{Hosts: func(string) ([]docker.RegistryHost, error) {
			return []docker.RegistryHost{r.peerHost(docker.HostCapabilityPull | docker.HostCapabilityResolve)}, nil
		}})
	}
	return f, nil
}

// peerHost returns the other nodes as a registry.
func (r *Registries) peerHost(capabilities docker.HostCapabilities) docker.RegistryHost {
	return docker.RegistryHost{
		Client:       &http.Client{Transport: r.peers},
		Scheme:       "http", // within this process
		Host:         "nodes.invalid",
		Path:         "/v2",
		Capabilities: capabilities,
	}
}
