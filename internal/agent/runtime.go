package agent

import (
	"cmp"
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
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/node/ownruntime"
)

// socket returns the socket of the container runtime.
func (n *node) socket() string { return cmp.Or(n.Settings.RuntimeSocket(), datadir.ContainerdSocket) }

// images decides where containerd gets images from: with the embedded registry also from other
// nodes. The user's own runtime decides itself.
func (n *node) images() *registries.Registries {
	if n.Settings.RuntimeSocket() != "" {
		return nil
	}
	var shared http.RoundTripper // an interface, so that it is nil without peers
	if n.Cluster.EmbeddedRegistry {
		n.sharing = peers.New(peers.Config{
			NodeName:  n.Node.Name,
			Informers: n.API.Informers,
			Store:     func() (content.Store, images.Store) { return n.own.Store() },
			CertFile:  n.Certificates.ServingCertFile,
			KeyFile:   n.Certificates.ServingKeyFile,
			CAFile:    n.Certificates.ClientCAFile,
			TLS:       n.Certificates.TLS,

			ServerCertificate: n.Server.Certificate,
		})
		shared = n.sharing
	}
	path := n.Settings.PrivateRegistry
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && path != config.Default().Node.PrivateRegistry {
		n.faults = append(n.faults, fmt.Errorf("private-registry: the file %s does not exist: create it, or remove the setting", path))
		return nil
	}
	var fault error
	if n.source, fault = registries.New(path, shared, n.events.Warn); fault != nil {
		n.faults = append(n.faults, fault)
		return nil
	}
	n.source.MirrorsOnly = n.Settings.DisableDefaultRegistryEndpoint
	return n.source
}

// runtime is ready when the CRI is served. It is kedge's containerd, or the user's own runtime.
func (n *node) runtime() component.Component {
	if socket := n.Settings.RuntimeSocket(); socket != "" {
		return ownruntime.New(socket)
	}
	n.own = containerd.New(containerd.Config{
		Root:           n.Dir.Containerd(),
		State:          datadir.ContainerdState,
		Socket:         datadir.ContainerdSocket,
		ConfigFile:     n.Dir.ContainerdConfig(),
		DropIns:        n.Dir.ContainerdDropIns(),
		CertsDir:       n.Dir.RegistryCerts(),
		Source:         n.source,
		PauseArchive:   n.assets.PauseArchive,
		PauseImage:     assets.PauseImage,
		ImagesDir:      n.Dir.Images(),
		CNIBinDirs:     []string{n.assets.Bin, datadir.CNIBinDir},
		CNIConfDir:     n.cniConfDir(),
		Snapshotter:    n.Settings.Snapshotter,
		DefaultRuntime: n.Settings.DefaultRuntime,
		SELinux:        n.Settings.SELinux,
		NonrootDevices: n.Settings.NonrootDevices,
		Facts:          n.facts,
		Warn:           n.events.Warn,
		Verbosity:      n.Process.Verbosity,
	})
	return n.own
}
