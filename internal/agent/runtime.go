package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
)

const (
	// runtimeInterval is how often a runtime of the user's own is asked whether
	// it is there, and runtimeReminder how often it is said that it is not.
	runtimeInterval = 500 * time.Millisecond
	runtimeReminder = 30 * time.Second
	// runtimeTimeout is how long it may take to answer.
	runtimeTimeout = 5 * time.Second
)

// cniPlugins are those of the helpers that kedge's CNI configuration names, and
// what the runtimes themselves want.
var cniPlugins = []string{"bridge", "host-local", "loopback", "portmap", "bandwidth"}

// addRuntime adds the component that is ready when the CRI is served, once the
// host is prepared, and returns it and the socket where: kedge's containerd, which
// is also read in this process, or a runtime of the user's own.
func addRuntime(group *component.Group, cfg Config, facts host.Facts, helpers assets.Paths, warn func(message string), prepared, api component.Component) (component.Component, string, kubelet.Runtime, error) {
	if socket := cfg.Settings.RuntimeSocket(); socket != "" {
		other := newOtherRuntime(socket)
		group.Add(other, prepared)
		return other, socket, nil, nil
	}
	var (
		own    *containerd.Containerd
		others *peers.Peers
		shared http.RoundTripper // nil, and not a nil *Peers
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
		return nil, "", nil, fmt.Errorf("private-registry: %s does not exist: make it, or leave the setting out", path)
	}
	source, err := registries.New(path, shared, warn)
	if err != nil {
		return nil, "", nil, err
	}
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
		Facts:          facts,
		Warn:           warn,
	})
	group.Add(own, prepared, source)
	if others != nil {
		group.Add(others, own, api)
	}
	return own, datadir.ContainerdSocket, own.Reader(), nil
}

// newOtherRuntime returns the component that is ready when a runtime that is
// not kedge's answers. It waits for it as long as it takes: at boot that may be
// started later, and without it there is nothing else that a node could do.
func newOtherRuntime(socket string) component.Component {
	return component.Step("runtime", func(ctx context.Context) error {
		if err := linkPlugins(datadir.CNIBinDir); err != nil {
			return err
		}
		return waitForRuntime(ctx, socket)
	})
}

func waitForRuntime(ctx context.Context, socket string) error {
	var reminded time.Time
	for {
		err := askRuntime(ctx, socket)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(reminded) > runtimeReminder {
			reminded = time.Now()
			logrus.WithField("component", "runtime").Warnf("No container runtime answers at %s: %v: start it, correct --container-runtime-endpoint, or leave that out for kedge's own containerd; trying again", socket, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(runtimeInterval):
		}
	}
}

// askRuntime returns nil if a socket serves the CRI. The connection is a new
// one each time: one that failed would be tried again more and more rarely.
func askRuntime(ctx context.Context, socket string) error {
	if _, err := os.Stat(socket); err != nil {
		return err // plainer than what gRPC makes of it
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to runtime: %w", err)
	}
	defer conn.Close()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// linkPlugins puts kedge's CNI plugins where other runtimes look for them, as
// far as there are none of these names. The links stay right when kedge is
// updated: they lead to the helpers of the kedge that runs.
func linkPlugins(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder of CNI plugins: %w", err)
	}
	for _, plugin := range cniPlugins {
		err := os.Symlink(filepath.Join(datadir.HelpersLink, plugin), filepath.Join(folder, plugin))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link CNI plugin: %w", err)
		}
	}
	return nil
}

// unlinkPlugins removes the links again.
func unlinkPlugins(folder string) error {
	var faults []error
	for _, plugin := range cniPlugins {
		link := filepath.Join(folder, plugin)
		if target, err := os.Readlink(link); err == nil && target == filepath.Join(datadir.HelpersLink, plugin) {
			faults = append(faults, os.Remove(link))
		}
	}
	return errors.Join(faults...)
}
