package adopt

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
)

// Paths of k3s.
const (
	k3sData = "/var/lib/rancher/k3s"
	k3sEtc  = "/etc/rancher/k3s"
	// shimAddress is in the command line of every process that keeps a container of
	// k3s. These processes run on when k3s stops.
	shimAddress = "/run/k3s/containerd/containerd.sock"
)

// installation is where k3s has its files, and its settings.
type installation struct {
	root string
	// data is k3s's data directory. etc has its configuration.
	data, etc string
	// settings are the values that k3s's configuration has, by k3s's keys.
	settings map[string][]string
}

// server returns the path of a file of the server.
func (k *installation) server(parts ...string) string {
	return filepath.Join(append([]string{k.data, "server"}, parts...)...)
}

// path returns the path, below the root, that a setting of k3s has, or else another one.
func (k *installation) path(key, other string) string {
	if value := k.setting(key); value != "" {
		return filepath.Join(k.root, value)
	}
	return other
}

// find finds k3s's files below root. It fails if k3s has never run a server there.
func find(root string) (*installation, error) {
	k := &installation{root: root, etc: filepath.Join(root, k3sEtc)}
	var err error
	if k.settings, err = readSettings(root); err != nil {
		return nil, err
	}
	k.data = k.path("data-dir", filepath.Join(root, k3sData))
	if _, err := os.Stat(k.server("tls", "server-ca.key")); err != nil {
		return nil, fmt.Errorf("this host has no files of a k3s server in %s (%w): run this command on a host on which `k3s server` has run. "+
			"On a host that ran `k3s agent`, there is nothing to adopt: run `kedge agent` there", k.data, err)
	}
	return k, nil
}

// readSettings reads, in the order of k3s's precedence, the files of its configuration,
// and the environment and the flags of its service.
func readSettings(root string) (map[string][]string, error) {
	service, err := k3shost.ReadService(root)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(root, k3sEtc, "config.yaml")
	if other := service.ConfigFile(); other != "" {
		file = filepath.Join(root, other)
	}
	files, err := config.DropIns(file)
	if err != nil {
		return nil, err
	}
	settings := map[string][]string{}
	for _, file := range append([]string{file}, files...) {
		if err := readFile(settings, file); err != nil {
			return nil, fmt.Errorf("read k3s's configuration %s: %w", file, err)
		}
	}
	for _, variable := range service.Environment {
		name, value, _ := strings.Cut(variable, "=")
		if key, ours := strings.CutPrefix(name, "K3S_"); ours {
			settings[strings.ToLower(strings.ReplaceAll(key, "_", "-"))] = []string{value}
		}
	}
	for _, flag := range service.Flags {
		settings[flag.Name] = flag.Values
	}
	return settings, nil
}

// readFile reads a file of k3s's configuration, if it is there. A key that ends in + adds
// values to those of earlier files.
func readFile(settings map[string][]string, file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list, isList := values[name].([]any)
		if !isList {
			list = []any{values[name]}
		}
		key, adds := strings.CutSuffix(name, "+")
		if !adds {
			settings[key] = nil
		}
		for _, value := range list {
			if value != nil {
				settings[key] = append(settings[key], fmt.Sprint(value))
			}
		}
	}
	return nil
}

// setting returns the last value of a key, or an empty text.
func (k *installation) setting(key string) string {
	values := k.settings[key]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// lines returns the lines of a file without their ends, none if the file cannot be read.
func lines(file string) func(yield func(string) bool) {
	text, _ := os.ReadFile(file)
	return strings.SplitSeq(string(text), "\n")
}

// datastore returns k3s's setting of a database.
func (k *installation) datastore() config.Datastore {
	return config.Datastore{
		Endpoint: k.setting("datastore-endpoint"),
		CAFile:   k.setting("datastore-cafile"),
		CertFile: k.setting("datastore-certfile"),
		KeyFile:  k.setting("datastore-keyfile"),
	}
}

// checkStopped fails if a process has k3s's datastore open, or keeps a container of k3s.
func (k *installation) checkStopped() error {
	processes, err := filepath.Glob(filepath.Join(k.root, "/proc/[0-9]*"))
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, process := range processes {
		pid, _ := strconv.Atoi(filepath.Base(process))
		command, _ := os.ReadFile(filepath.Join(process, "cmdline")) // the process may have ended
		if slices.Contains(strings.Split(string(command), "\x00"), shimAddress) {
			return fmt.Errorf("pods of k3s still run on this host (process %d), and kedge would start them a second time: run k3s-killall.sh, which stops k3s and its pods, and then this command", pid)
		}
		open, _ := filepath.Glob(filepath.Join(process, "fd", "*"))
		for _, file := range open {
			path, _ := os.Readlink(file)
			if strings.HasPrefix(path, k.server("db")+"/") {
				return fmt.Errorf("process %d uses k3s's datastore (%s): run k3s-killall.sh, which stops k3s and its pods, and then this command", pid, path)
			}
		}
	}
	return nil
}
