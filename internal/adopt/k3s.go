package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/k3shost"
)

// shimAddress is in the command line of every process that keeps a container of k3s. These
// processes run on when k3s stops.
const shimAddress = "/run/k3s/containerd/containerd.sock"

// installation is where k3s has its files and its objects.
type installation struct {
	root string
	// data is k3s's data directory. etc has its configuration.
	data, etc string
	// settings are what k3s was configured with.
	settings *k3shost.Settings
}

// server returns the path of a file of the server.
func (k *installation) server(parts ...string) string {
	return filepath.Join(append([]string{k.data, "server"}, parts...)...)
}

// registries returns the file with k3s's registries, which may not be there.
func (k *installation) registries() string {
	if k.settings.Sources["private-registry"] != "" {
		return filepath.Join(k.root, k.settings.Config.Node.PrivateRegistry)
	}
	return filepath.Join(k.etc, "registries.yaml")
}

// volumes returns the folder with k3s's local volumes, which may not be there.
func (k *installation) volumes() string {
	if folder := k.settings.Config.Node.DefaultLocalStoragePath; folder != "" {
		return filepath.Join(k.root, folder)
	}
	return filepath.Join(k.data, "storage")
}

// find finds k3s's files below root. It fails if k3s has never run a server there.
func find(root string) (*installation, error) {
	settings, err := k3shost.Read(root)
	if err == nil {
		err = settings.Unreadable()
	}
	if err != nil {
		return nil, fmt.Errorf("read how k3s is configured: %w", err)
	}
	k := &installation{
		root: root, data: filepath.Join(root, settings.DataDir()), etc: filepath.Join(root, k3shost.ConfigFolder),
		settings: settings,
	}
	if _, err := os.Stat(k.server("tls", "server-ca.key")); err != nil {
		return nil, fmt.Errorf("this host has no files of a k3s server in %s (%w): run this command on a host on which `k3s server` has run. "+
			"On a host that ran `k3s agent`, there is nothing to adopt: run `kedge agent` there", k.data, err)
	}
	return k, nil
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
