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

// settle is how long the folder of the file must be at rest before it is read.
const settle = 200 * time.Millisecond

// registryPatience is how long a registry is waited for that another node may know
// as much of. Upstream gives one that is out of reach 30 seconds, five times.
const registryPatience = 10 * time.Second

// Registries is the component that follows registries.yaml. What has changed
// holds for the next pull.
type Registries struct {
	path string
	// peers are the other nodes, nil if they do not share.
	peers http.RoundTripper
	// patience is how long a registry may take before they are asked, too.
	patience time.Duration
	text     []byte // what is in use
	said     string // what is wrong with the file, if it is
	current  atomic.Pointer[settings]
	warn     func(message string)
	log      *logrus.Entry
}

// New reads the file, which need not be there. The error says what is wrong in
// which line. Unless it is nil, peers is asked before the registries that the file
// lists as mirrors. warn tells users by an Event when the file has become wrong.
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

// Run implements component.Component. A file that is wrong is said, and the
// settings before it stay.
func (r *Registries) Run(ctx context.Context, ready func()) error {
	folder := filepath.Dir(r.path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder of registries: %w", err)
	}
	changes := folderwatch.Start(ctx, folder, settle, r.log)
	r.reload() // what has changed since New
	ready()
	for range changes {
		r.reload()
	}
	return nil
}

// reload says each thing once: other files of the folder may change often.
func (r *Registries) reload() {
	next, text, err := read(r.path)
	if err != nil {
		if err.Error() != r.said {
			r.said = err.Error()
			message := fmt.Sprintf("the registries stay as they were before: %v", err)
			r.log.Error(message)
			r.warn(message)
		}
		return
	}
	r.said = ""
	if !bytes.Equal(text, r.text) {
		r.text = text
		r.current.Store(next)
		r.log.Infof("%s was read again: it holds for the next pull", r.path)
	}
}

// Fetcher returns what pulls an image as the file says, or nil if that says
// nothing about its registry, and containerd knows as much.
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
			// The context is for the log only, and this one outlives the request.
			hosts, err := now.hosts(context.Background(), pull, registry)
			if shared {
				// Content is the same wherever it comes from: its digest is checked.
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
