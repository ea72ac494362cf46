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
)

// Paths of k3s.
const (
	k3sData = "/var/lib/rancher/k3s"
	k3sEtc  = "/etc/rancher/k3s"
	// shimAddress is in the command line of every process that keeps a container of
	// k3s. These processes run on when k3s stops.
	shimAddress = "/run/k3s/containerd/containerd.sock"
)

// installation is where k3s has its files, and the few of its settings that say where
// its objects are.
type installation struct {
	// data is k3s's data directory. etc has its configuration.
	data, etc string
	settings  map[string]string
}

// server returns the path of a file of the server.
func (k *installation) server(parts ...string) string {
	return filepath.Join(append([]string{k.data, "server"}, parts...)...)
}

// find finds k3s's files below root. It fails if k3s has never run a server there.
func find(root string) (*installation, error) {
	k := &installation{etc: filepath.Join(root, k3sEtc), settings: map[string]string{}}
	if err := k.readSettings(root); err != nil {
		return nil, err
	}
	data := k.settings["data-dir"]
	if data == "" {
		data = k3sData
	}
	k.data = filepath.Join(root, data)
	if _, err := os.Stat(k.server("tls", "server-ca.key")); err != nil {
		return nil, fmt.Errorf("this host has no files of a k3s server in %s (%w): run this command on a host on which `k3s server` has run. "+
			"On a host that ran `k3s agent`, there is nothing to adopt: run `kedge agent` there", k.data, err)
	}
	return k, nil
}

// readSettings reads, in the order of k3s's precedence, the files of its configuration,
// and the environment and the flags of its service.
func (k *installation) readSettings(root string) error {
	files, err := filepath.Glob(filepath.Join(k.etc, "config.yaml.d", "*.y*ml"))
	if err != nil {
		return fmt.Errorf("find k3s's configuration: %w", err)
	}
	for _, file := range append([]string{filepath.Join(k.etc, "config.yaml")}, files...) {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		values := map[string]any{}
		if err == nil {
			err = yaml.Unmarshal(text, &values)
		}
		if err != nil {
			return fmt.Errorf("read k3s's configuration %s: %w", file, err)
		}
		for name, value := range values {
			k.settings[strings.TrimSuffix(name, "+")] = fmt.Sprint(value)
		}
	}
	unit := filepath.Join(root, "/etc/systemd/system/k3s.service")
	for line := range lines(unit + ".env") {
		name, value, _ := strings.Cut(line, "=")
		if key, ours := strings.CutPrefix(name, "K3S_"); ours {
			k.settings[strings.ToLower(strings.ReplaceAll(key, "_", "-"))] = strings.Trim(value, `"'`)
		}
	}
	maps.Copy(k.settings, flags(unit))
	return nil
}

// flags returns the flags of the service in a unit of systemd. install.sh of k3s writes
// one word in each line.
func flags(unit string) map[string]string {
	var words []string
	for line := range lines(unit) {
		for _, word := range strings.Fields(line) {
			if word = strings.Trim(word, `\'"`); word != "" {
				words = append(words, word)
			}
		}
	}
	found := map[string]string{}
	for i, word := range words {
		name, is := strings.CutPrefix(word, "--")
		if !is {
			continue
		}
		name, value, assigned := strings.Cut(name, "=")
		if !assigned && i+1 < len(words) {
			value = words[i+1]
		}
		found[name] = value
	}
	return found
}

// lines returns the lines of a file without their ends, none if the file cannot be read.
func lines(file string) func(yield func(string) bool) {
	text, _ := os.ReadFile(file)
	return strings.SplitSeq(string(text), "\n")
}

// datastore returns k3s's setting of a database.
func (k *installation) datastore() config.Datastore {
	return config.Datastore{
		Endpoint: k.settings["datastore-endpoint"],
		CAFile:   k.settings["datastore-cafile"],
		CertFile: k.settings["datastore-certfile"],
		KeyFile:  k.settings["datastore-keyfile"],
	}
}

// checkStopped fails if a process has k3s's datastore open, or keeps a container of k3s.
func (k *installation) checkStopped(root string) error {
	processes, err := filepath.Glob(filepath.Join(root, "/proc/[0-9]*"))
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
