package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
	"github.com/kedge-dev/kedge/internal/node/ownruntime"
)

// addRuntime adds the component that is ready when the CRI is served: kedge's containerd,
// or the user's own runtime. It starts after prepared. addRuntime returns the component,
// its socket, and for kedge's containerd a reader in this process.
func addRuntime(group *component.Group, cfg Config, facts host.Facts, helpers assets.Paths, warn func(message string), prepared, api component.Component) (component.Component, string, kubelet.Runtime, error) {
	if socket := cfg.Settings.RuntimeSocket(); socket != "" {
		other := ownruntime.New(socket)
		group.Add(other, prepared)
		return other, socket, nil, nil
	}
	var (
		own    *containerd.Containerd
		others *peers.Peers
		shared http.RoundTripper // an interface, so that it is nil without peers
	)
	if cfg.Cluster.EmbeddedRegistry {
		others = peers.New(peers.Config{
			NodeName:  cfg.Node.Name,
			Informers: cfg.Informers,
			Store:     func() (content.Store, images.Store) { return own.Store() },
			CertFile:  cfg.ServingCertFile,
			KeyFile:   cfg.ServingKeyFile,
			CAFile:    cfg.ClientCAFile,
			TLS:       cfg.TLS,

			ServerCertificate: cfg.ServerCertificate,
		})
		shared = others
	}
	path := cfg.Settings.PrivateRegistry
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && path != config.Default().Node.PrivateRegistry {
		return nil, "", nil, fmt.Errorf("private-registry: the file %s does not exist: create it, or remove the setting", path)
	}
	source, err := registries.New(path, shared, warn)
	if err != nil {
		return nil, "", nil, err
	}
	source.MirrorsOnly = cfg.Settings.DisableDefaultRegistryEndpoint
	group.Add(source)
	own = containerd.New(containerd.Config{
		Root:           cfg.Dir.Containerd(),
		State:          datadir.ContainerdState,
		Socket:         datadir.ContainerdSocket,
		ConfigFile:     cfg.Dir.ContainerdConfig(),
		DropIns:        cfg.Dir.ContainerdDropIns(),
		CertsDir:       cfg.Dir.RegistryCerts(),
		Source:         source,
		PauseArchive:   helpers.PauseArchive,
		PauseImage:     assets.PauseImage,
		ImagesDir:      cfg.Dir.Images(),
		CNIBinDirs:     []string{helpers.Bin, datadir.CNIBinDir},
		CNIConfDir:     cniConfDir(cfg),
		Snapshotter:    cfg.Settings.Snapshotter,
		DefaultRuntime: cfg.Settings.DefaultRuntime,
		SELinux:        cfg.Settings.SELinux,
		NonrootDevices: cfg.Settings.NonrootDevices,
		Facts:          facts,
		Warn:           warn,
		Verbosity:      cfg.Process.Verbosity,
	})
	group.Add(own, prepared, source)
	if others != nil {
		group.Add(others, own, api)
	}
	return own, datadir.ContainerdSocket, own.Reader(), nil
}
