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

// configVersion is the format of containerd's configuration that is written.
const configVersion = 4

// criPlugin must load, or there is no use in starting.
const criPlugin = "io.containerd.grpc.v1.cri"

// unused are plugins of upstream's gRPC server that count its calls, for a
// metrics port that is not there. The counters alone are 2 MB.
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/server/grpc/metrics.go
var unused = []string{"io.containerd.metrics.v1.grpc-prometheus", "io.containerd.metrics.v1.grpc-otel"}

// streamPort is where the kubelet fetches exec, attach and port-forward
// streams, on loopback, each behind a token of one use. It is k3s's.
const streamPort = "10010"

// The sections of containerd's configuration that kedge sets: a subset of
// upstream's own types, most of which are internal to containerd (criconfig is
// internal/cri/config/config.go). What is not set stays upstream's default, and
// what is false or empty is left out, as a user's drop-in could not take it
// back: upstream merges by "not empty wins".
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
		StatsCollectPeriod  string           `toml:"stats_collect_period"`
		CNI                 cniConfig        `toml:"cni"`
		Containerd          containerdConfig `toml:"containerd"`
	}
	cniConfig struct {
		BinDirs []string `toml:"bin_dirs"`
		ConfDir string   `toml:"conf_dir"`
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

// generate returns containerd's configuration for cfg.
func generate(cfg Config, snapshotter string, runtimes []Runtime, port string) *fileConfig {
	handlers := map[string]handlerConfig{}
	for _, r := range runtimes {
		h := handlerConfig{RuntimeType: r.Type}
		if r.Type == runcType {
			h.Options = &runcSettings{BinaryName: r.Path, SystemdCgroup: cfg.Facts.CgroupDriver == host.DriverSystemd}
		} else {
			h.RuntimePath = r.Path
		}
		if r.Name == "kata" {
			// Kata reads its settings from them: kata-containers.io, annotations.
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
		// Upstream waits for ever for a database that another process has open.
		Timeouts: map[string]string{"io.containerd.timeout.bolt.open": "20s"},
		Plugins: pluginsConfig{
			GRPC:  listenConfig{Address: cfg.Socket},
			TTRPC: listenConfig{Address: cfg.Socket + ".ttrpc"},
			Shim:  shimConfig{SocketDir: filepath.Join(cfg.State, "s")},
			Images: imagesConfig{
				Snapshotter:  snapshotter,
				PinnedImages: map[string]string{"sandbox": cfg.PauseImage},
				Registry:     registryConfig{ConfigPath: cfg.CertsDir},
			},
			Runtime: runtimeConfig{
				EnableSELinux:       cfg.SELinux,
				RestrictOOMScoreAdj: !cfg.Facts.SysResource,
				// Upstream's default asks every shim every second, for a figure
				// that only crictl shows.
				StatsCollectPeriod: "10s",
				CNI:                cniConfig{BinDirs: cfg.CNIBinDirs, ConfDir: cfg.CNIConfDir},
				Containerd:         containerdConfig{DefaultRuntimeName: cfg.DefaultRuntime, Runtimes: handlers},
			},
			CRI: criConfig{StreamServerAddress: "127.0.0.1", StreamServerPort: port},
			Transfer: transferConfig{UnpackConfig: []unpackConfig{
				{Platform: platforms.DefaultString(), Snapshotter: snapshotter, Differ: "walking"},
			}},
		},
	}
	if snapshotter != overlayfs {
		file.DisabledPlugins = append(slices.Clone(unused), "io.containerd.snapshotter.v1."+overlayfs)
	}
	return file
}

// checkDefaultRuntime finds a default runtime that is neither on this host nor
// in a drop-in, which containerd would say in terms of its own file.
func checkDefaultRuntime(config *srvconfig.Config) error {
	runtime, _ := config.Plugins["io.containerd.cri.v1.runtime"].(map[string]any)
	containerd, _ := runtime["containerd"].(map[string]any)
	handlers, _ := containerd["runtimes"].(map[string]any)
	if name, _ := containerd["default_runtime_name"].(string); handlers[name] == nil {
		return fmt.Errorf("default-runtime %q is not installed on this host, which has %s: install it or choose another",
			name, strings.Join(slices.Sorted(maps.Keys(handlers)), ", "))
	}
	return nil
}

// load writes the configuration to cfg.ConfigFile, for the user to see, and
// reads it back as containerd does: with the user's drop-ins merged over it,
// those of older formats migrated.
func load(ctx context.Context, cfg Config, file *fileConfig) (*srvconfig.Config, error) {
	data, err := toml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("encode containerd configuration: %w", err)
	}
	data = append([]byte("# Written by kedge at every start. Your own settings go to "+strings.Join(cfg.DropIns, " or ")+".\n"), data...)
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
	// The maps must be there: upstream's mergeConfig copies into them.
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
	// These two would move the whole of kedge: server_linux.go, apply.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd/server/server_linux.go apply
	out.OOMScore, out.Cgroup.Path = 0, ""
	return out, checkDefaultRuntime(out)
}

// checkDropIns finds syntax errors and names their file, which upstream only
// does in the log.
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
			faults = append(faults, fmt.Errorf("read %s: %w: mend or remove it", file, err))
		}
	}
	return errors.Join(faults...)
}

// pickStreamPort returns streamPort, or any where another process has it.
func pickStreamPort() string {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", streamPort))
	if err != nil {
		return "0"
	}
	l.Close()
	return streamPort
}
