package containerd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/pelletier/go-toml/v2"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// configVersion is the version of containerd's configuration format that kedge writes.
const configVersion = 4

// criPlugin must load. Without it containerd must not start.
const criPlugin = "io.containerd.grpc.v1.cri"

// nriPlugin is the node resource interface.
const nriPlugin = "io.containerd.nri.v1.nri"

// unused are the plugins of upstream's gRPC server that count its calls for a metrics port.
// kedge has no such port, and the counters alone need 2 MB.
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/server/grpc/metrics.go
var unused = []string{"io.containerd.metrics.v1.grpc-prometheus", "io.containerd.metrics.v1.grpc-otel"}

// never is the interval at which containerd asks every shim, and reads the cgroup of every pod, to
// know how much processor time each is using. It is longer than containerd keeps the answers, so
// containerd has none. It then takes the difference since the question before, and the kubelet asks
// every 10 seconds. What users see of this value, cAdvisor has measured.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/container_stats_list.go criService.getUsageNanoCores
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/stats_collector.go NewStatsCollector StatsCollector.collectLoop
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/store/stats/timed_store.go TimedStore.Add TimedStore.GetLatestUsageNanoCores
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/cri_stats_provider.go criStatsProvider.addCadvisorContainerStats
const never = "24h"

// streamPort is the loopback port from which the kubelet fetches exec, attach and port-forward
// streams. Each stream needs a token that is valid once. k3s uses the same port.
const streamPort = "10010"

// timeouts are longer than upstream's, which are 2 to 5 seconds. containerd kills the containers of a shim that does not
// answer in time while kedge starts, and the shims of a slow machine need longer. For a database upstream has no limit.
//
//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/shim_load.go ShimManager.loadShim
//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/shim.go cleanupAfterDeadShim
//upstream:relies-on github.com/containerd/containerd/v2/plugins/services/tasks/local.go getProcessState
var timeouts = map[string]string{
	"io.containerd.timeout.bolt.open":    "20s", // another process has the database open
	"io.containerd.timeout.shim.load":    "1m",
	"io.containerd.timeout.shim.cleanup": "1m",
	"io.containerd.timeout.task.state":   "10s",
}

// The sections of containerd's configuration that kedge sets. They are a subset of upstream's own
// types, most of which are internal to containerd (criconfig is internal/cri/config/config.go).
// A setting that kedge leaves out keeps upstream's default. Settings that are false or empty are
// left out: upstream merges by "not empty wins", so a user's drop-in could not reset them.
type (
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/config/config.go ImageConfig RuntimeConfig ServerConfig
	fileConfig struct {
		Version         int               `toml:"version"`
		Root            string            `toml:"root"`
		State           string            `toml:"state"`
		Imports         []string          `toml:"imports,omitempty"`
		RequiredPlugins []string          `toml:"required_plugins"`
		DisabledPlugins []string          `toml:"disabled_plugins,omitempty"`
		Timeouts        map[string]string `toml:"timeouts"`
		Plugins         pluginsConfig     `toml:"plugins"`
	}
	pluginsConfig struct {
		GRPC     listenConfig   `toml:"io.containerd.server.v1.grpc"`
		TTRPC    listenConfig   `toml:"io.containerd.server.v1.ttrpc"`
		Shim     shimConfig     `toml:"io.containerd.shim.v1.manager"`
		Images   imagesConfig   `toml:"io.containerd.cri.v1.images"`
		Runtime  runtimeConfig  `toml:"io.containerd.cri.v1.runtime"`
		CRI      criConfig      `toml:"io.containerd.grpc.v1.cri"`
		Transfer transferConfig `toml:"io.containerd.transfer.v1.local"`
	}
	listenConfig struct {
		Address string `toml:"address"`
	}
	shimConfig struct {
		SocketDir string `toml:"socket_dir"`
	}
	imagesConfig struct {
		Snapshotter  string            `toml:"snapshotter"`
		PinnedImages map[string]string `toml:"pinned_images"`
		Registry     registryConfig    `toml:"registry"`
	}
	registryConfig struct {
		ConfigPath string `toml:"config_path"`
	}
	runtimeConfig struct {
		EnableSELinux       bool             `toml:"enable_selinux,omitempty"`
		RestrictOOMScoreAdj bool             `toml:"restrict_oom_score_adj,omitempty"`
		DisableAppArmor     bool             `toml:"disable_apparmor,omitempty"`
		DeviceOwnership     bool             `toml:"device_ownership_from_security_context,omitempty"`
		StatsCollectPeriod  string           `toml:"stats_collect_period"`
		CNI                 cniConfig        `toml:"cni"`
		Containerd          containerdConfig `toml:"containerd"`
	}
	cniConfig struct {
		BinDirs []string `toml:"bin_dirs"`
		ConfDir string   `toml:"conf_dir"`
		// InternalLoopback sets up the loopback interface of a pod without a plugin, which would be one more process.
		InternalLoopback bool `toml:"use_internal_loopback"`
	}
	containerdConfig struct {
		DefaultRuntimeName string                   `toml:"default_runtime_name"`
		Runtimes           map[string]handlerConfig `toml:"runtimes"`
	}
	handlerConfig struct {
		RuntimeType    string        `toml:"runtime_type"`
		RuntimePath    string        `toml:"runtime_path,omitempty"`
		PodAnnotations []string      `toml:"pod_annotations,omitempty"`
		Options        *runcSettings `toml:"options,omitempty"`
	}
	// runcSettings are in api/types/runc/options.
	runcSettings struct {
		BinaryName    string `toml:"BinaryName,omitempty"`
		ShimCgroup    string `toml:"ShimCgroup,omitempty"`
		SystemdCgroup bool   `toml:"SystemdCgroup,omitempty"`
	}
	criConfig struct {
		StreamServerAddress string `toml:"stream_server_address"`
		StreamServerPort    string `toml:"stream_server_port"`
	}
	transferConfig struct {
		UnpackConfig []unpackConfig `toml:"unpack_config"`
	}
	unpackConfig struct {
		Platform    string `toml:"platform"`
		Snapshotter string `toml:"snapshotter"`
		Differ      string `toml:"differ"`
	}
)

// findings are what a start finds on the host.
type findings struct {
	snapshotter string
	runtimes    []Runtime
	streamPort  string
	// shimCgroup is the cgroup for shims. Without it they stay in that of kedge.
	shimCgroup string
}

// generate returns containerd's configuration for cfg.
func generate(cfg Config, found findings) *fileConfig {
	handlers := map[string]handlerConfig{}
	for _, r := range found.runtimes {
		h := handlerConfig{RuntimeType: r.Type}
		if r.Type == runcType {
			h.Options = &runcSettings{
				BinaryName:    r.Path,
				ShimCgroup:    found.shimCgroup,
				SystemdCgroup: cfg.Facts.CgroupDriver == host.DriverSystemd,
			}
		} else {
			h.RuntimePath = r.Path
		}
		if r.Name == "kata" {
			// Kata reads its settings from these annotations: kata-containers.io, annotations.
			h.PodAnnotations = []string{"io.katacontainers.*"}
		}
		handlers[r.Name] = h
	}
	file := &fileConfig{
		Version:         configVersion,
		Root:            cfg.Root,
		State:           cfg.State,
		Imports:         cfg.DropIns,
		RequiredPlugins: []string{criPlugin},
		DisabledPlugins: unused,
		Timeouts:        timeouts,
		Plugins: pluginsConfig{
			GRPC:  listenConfig{Address: cfg.Socket},
			TTRPC: listenConfig{Address: cfg.Socket + ".ttrpc"},
			Shim:  shimConfig{SocketDir: filepath.Join(cfg.State, "s")},
			Images: imagesConfig{
				Snapshotter:  found.snapshotter,
				PinnedImages: map[string]string{"sandbox": cfg.PauseImage},
				Registry:     registryConfig{ConfigPath: cfg.CertsDir},
			},
			Runtime: runtimeConfig{
				EnableSELinux:       cfg.SELinux,
				RestrictOOMScoreAdj: !cfg.Facts.SysResource,
				DisableAppArmor:     cfg.Facts.UserNamespace,
				DeviceOwnership:     cfg.NonrootDevices,
				StatsCollectPeriod:  never,
				CNI:                 cniConfig{BinDirs: cfg.CNIBinDirs, ConfDir: cfg.CNIConfDir, InternalLoopback: true},
				Containerd:          containerdConfig{DefaultRuntimeName: cfg.DefaultRuntime, Runtimes: handlers},
			},
			CRI: criConfig{StreamServerAddress: "127.0.0.1", StreamServerPort: found.streamPort},
			Transfer: transferConfig{UnpackConfig: []unpackConfig{
				{Platform: platforms.DefaultString(), Snapshotter: found.snapshotter, Differ: "walking"},
			}},
		},
	}
	if found.snapshotter != overlayfs {
		file.DisabledPlugins = append(slices.Clone(unused), "io.containerd.snapshotter.v1."+overlayfs)
	}
	return file
}

// checkDefaultRuntime returns an error if the default runtime is neither on this host nor in a
// drop-in. containerd's own error names only its configuration file.
func checkDefaultRuntime(config *srvconfig.Config) error {
	runtime, _ := config.Plugins["io.containerd.cri.v1.runtime"].(map[string]any)
	containerd, _ := runtime["containerd"].(map[string]any)
	handlers, _ := containerd["runtimes"].(map[string]any)
	if name, _ := containerd["default_runtime_name"].(string); handlers[name] == nil {
		return fmt.Errorf("default-runtime %q is not installed on this host: install it, or set default-runtime to one of %s",
			name, strings.Join(slices.Sorted(maps.Keys(handlers)), ", "))
	}
	return nil
}

// load writes the configuration to cfg.ConfigFile, where the user can read it, and reads it back
// as containerd does: it migrates the user's drop-ins from older formats and merges them over it.
func load(ctx context.Context, cfg Config, file *fileConfig) (*srvconfig.Config, error) {
	data, err := toml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("encode containerd configuration: %w", err)
	}
	data = append([]byte("# Written by kedge at every start. Put your own settings in "+strings.Join(cfg.DropIns, " or ")+".\n"), data...)
	if err := os.MkdirAll(filepath.Dir(cfg.ConfigFile), 0o700); err != nil {
		return nil, fmt.Errorf("write containerd configuration: %w", err)
	}
	if err := os.WriteFile(cfg.ConfigFile, data, 0o600); err != nil {
		return nil, fmt.Errorf("write containerd configuration: %w", err)
	}
	if err := checkDropIns(cfg.DropIns); err != nil {
		return nil, err
	}
	registrations := registry.Graph(func(*plugin.Registration) bool { return false })
	var all srvconfig.PluginFunc = func() iter.Seq[plugin.Registration] { return slices.Values(registrations) }
	// The maps must not be nil: upstream's mergeConfig copies into them.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd/server/config/config.go LoadConfigWithPlugins mergeConfig
	out := &srvconfig.Config{
		Version:          configVersion,
		Plugins:          map[string]any{},
		StreamProcessors: map[string]srvconfig.StreamProcessor{},
		ProxyPlugins:     map[string]srvconfig.ProxyPlugin{},
		Timeouts:         map[string]string{},
	}
	if err := srvconfig.LoadConfigWithPlugins(ctx, cfg.ConfigFile, all, out); err != nil {
		return nil, fmt.Errorf("load containerd configuration %s with %v: %w", cfg.ConfigFile, cfg.DropIns, err)
	}
	// Upstream applies these two to the whole process (apply in server_linux.go), which is kedge.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd/server/server_linux.go apply
	out.OOMScore, out.Cgroup.Path = 0, ""
	disableNRI(out)
	return out, checkDefaultRuntime(out)
}

// disableNRI switches the node resource interface off, unless a drop-in has a section for it. With it, containerd
// panics if a container ends whose sandbox is gone, and kedge ends with it. This is not in the file, because there
// a drop-in could not switch the interface on again.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/nri/nri_api_linux.go API.NotifyContainerExit API.nriPodSandbox
//upstream:relies-on github.com/containerd/containerd/v2/internal/nri/nri.go local.IsEnabled
func disableNRI(config *srvconfig.Config) {
	if _, chosen := config.Plugins[nriPlugin]; !chosen {
		config.Plugins[nriPlugin] = map[string]any{"disable": true}
	}
}

// checkDropIns returns the syntax errors in the drop-ins, each with its file. Upstream names the
// file only in the log.
func checkDropIns(globs []string) error {
	var files []string
	for _, glob := range globs {
		matches, err := filepath.Glob(glob)
		if err != nil {
			return fmt.Errorf("list containerd drop-ins: %w", err)
		}
		files = append(files, matches...)
	}
	var faults []error
	for _, file := range files {
		data, err := datadir.ReadText(file)
		if err == nil {
			err = toml.Unmarshal(data, &map[string]any{})
		}
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			row, column := decode.Position()
			err = fmt.Errorf("line %d, column %d: %w", row, column, decode)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("read %s: %w: correct or remove this file", file, err))
		}
	}
	return errors.Join(faults...)
}

// pickStreamPort returns streamPort, or "0" (any free port) if another process listens there.
func pickStreamPort() string {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", streamPort))
	if err != nil {
		return "0"
	}
	l.Close()
	return streamPort
}
