package clusters

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/rootless"
)

// Store is where the records are. Its zero value is not valid: see Default.
type Store struct {
	// Run has a folder for each cluster that runs, or that was killed. A reboot empties it.
	Run string
	// Data has a folder for each cluster that stays.
	Data string
}

// Errors of Hold and Find.
var (
	ErrUnknown = errors.New("there is no such cluster. Run `sudo kedge cluster list` for the list")
	ErrRuns    = errors.New("it runs")
)

// The files of a cluster.
const (
	clusterFile = "cluster.json"
	statusFile  = "status.json"
	lockFile    = "lock"
)

// Default returns the store of this user: root's, or another user's for clusters without nodes.
func Default() (Store, error) {
	if os.Geteuid() == 0 {
		return Store{Run: "/run/kedge-clusters", Data: "/var/lib/kedge-clusters"}, nil
	}
	parent := rootless.RuntimeFolder()
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	run := filepath.Join(parent, fmt.Sprintf("kedge-clusters-%d", os.Geteuid()))
	err := privateFolder(run)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // The first cluster makes it.
	}
	return Store{Run: run}, err
}

// privateFolder fails if others than this user can use a folder. Other users may have made something of that
// name before, because the folder may be in /tmp.
func privateFolder(path string) error {
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFDIR || int(info.Uid) != os.Geteuid() || info.Mode&0o077 != 0 {
		return fmt.Errorf("%s is not a folder for this user only: remove it, or set XDG_RUNTIME_DIR to a folder of your own", path)
	}
	return nil
}

// RunFolder returns the folder of a cluster that is there while the cluster runs.
func (s Store) RunFolder(name string) string { return filepath.Join(s.Run, name) }

// DataFolder returns the folder with the data of a cluster that stays.
func (s Store) DataFolder(name string) string { return filepath.Join(s.Data, name) }

// Kubeconfig returns the path of the administrator's kubeconfig of a cluster that runs.
func (s Store) Kubeconfig(name string) string { return filepath.Join(s.RunFolder(name), "kubeconfig") }

// Logs returns the folder with the logs of a cluster: one file for each node, and one of the keeper.
func (s Store) Logs(c Cluster) string {
	if c.Temporary {
		return filepath.Join(s.RunFolder(c.Name), "logs")
	}
	return filepath.Join(s.DataFolder(c.Name), "logs")
}

// Held is a cluster whose lock this process has. The kernel gives the lock back when the process ends, in
// whatever way.
type Held struct {
	Cluster
	store Store
	lock  *os.File
}

// Create makes a new cluster, and holds it. It chooses the name, if that is empty, and the network. It
// also removes what killed clusters have left.
func (s Store) Create(c Cluster) (*Held, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := s.clear()
	if err != nil {
		return nil, err
	}
	if c.Name == "" {
		c.Name = "run-" + strings.ToLower(rand.Text()[:6])
	}
	if err := CheckName(c.Name); err != nil {
		return nil, err
	}
	taken := map[int]bool{}
	for _, other := range known {
		if other.Name == c.Name {
			return nil, fmt.Errorf("a cluster of the name %s exists already. Choose another name, or run `sudo kedge cluster delete %s`", c.Name, c.Name)
		}
		taken[other.Subnet] = taken[other.Subnet] || !other.APIOnly
	}
	if !c.APIOnly {
		networks, err := routes()
		if err != nil {
			return nil, err
		}
		if c.Subnet, err = freeSubnet(taken, networks); err != nil {
			return nil, err
		}
	}
	return s.hold(c)
}

// Hold takes a cluster that does not run. It fails with ErrUnknown if there is no such cluster, and with
// ErrRuns if it runs.
func (s Store) Hold(name string) (*Held, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := s.clear()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(known, func(c Cluster) bool { return c.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("find cluster %q: %w", name, ErrUnknown)
	}
	return s.hold(known[at])
}

// hold makes the folders and files of a cluster, and locks it.
func (s Store) hold(c Cluster) (*Held, error) {
	folder := s.RunFolder(c.Name)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of the cluster: %w", datadir.Explain(err))
	}
	lock, err := os.OpenFile(filepath.Join(folder, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cluster: %w", datadir.Explain(err))
	}
	// Unlike flock, locks of this kind can be looked at without taking them: see runs.
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock cluster %s: %w", c.Name, ErrRuns)
	}
	h := &Held{c, s, lock}
	record := folder
	if !c.Temporary {
		record = s.DataFolder(c.Name)
	}
	for _, f := range []string{record, s.Logs(c)} {
		if err == nil {
			err = os.MkdirAll(f, 0o700)
		}
	}
	if err == nil {
		err = write(filepath.Join(record, clusterFile), c)
	}
	if err == nil {
		err = h.Write(Status{State: Starting, Keeper: os.Getpid()})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make record of the cluster: %w", datadir.Explain(err)), h.Release())
	}
	return h, nil
}

// Write writes down what the cluster does now.
func (h *Held) Write(status Status) error {
	return write(filepath.Join(h.store.RunFolder(h.Name), statusFile), status)
}

// Release removes what is only there while the cluster runs, and gives the lock back. Nothing may run any
// more.
func (h *Held) Release() error {
	unlock, err := h.store.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(h.store.clearOne(h.Name, nil), h.lock.Close())
}

// Delete is Release that also removes the data of the cluster.
func (h *Held) Delete() error {
	if h.Temporary {
		return h.Release()
	}
	data := removeLast(h.store.DataFolder(h.Name), clusterFile)
	if data == nil {
		// The folder of all clusters goes with the last of them.
		_ = os.Remove(h.store.Data)
	}
	return errors.Join(data, h.Release())
}

// lock keeps other processes from changing the store.
func (s Store) lock() (unlock func(), err error) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if err := os.MkdirAll(s.Run, 0o700); err != nil {
			return nil, fmt.Errorf("make folder for clusters: %w", datadir.Explain(err))
		}
		path := filepath.Join(s.Run, ".lock")
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) && time.Since(began) < time.Second {
			continue // Another process has just removed the empty folder.
		}
		if err != nil {
			return nil, fmt.Errorf("lock clusters: %w", datadir.Explain(err))
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock clusters: %w", err)
		}
		// The file that this process has locked may be one that another has removed.
		var here, there unix.Stat_t
		if unix.Fstat(int(file.Fd()), &here) == nil && unix.Lstat(path, &there) == nil && here.Ino == there.Ino {
			// Another user may have made the folder after the last cluster of this user had removed it.
			if err := privateFolder(s.Run); err != nil {
				file.Close()
				return nil, err
			}
			return func() { s.unlock(file) }, nil
		}
		file.Close()
	}
}

// unlock also removes the folder of all clusters, if none runs.
func (s Store) unlock(file *os.File) {
	if entries, err := os.ReadDir(s.Run); err == nil && len(entries) == 1 {
		_ = os.Remove(file.Name())
		_ = os.Remove(s.Run)
	}
	file.Close()
}

func write(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return datadir.WriteFile(path, append(text, '\n'), 0o600)
}

func read[T any](path string) (value T, err error) {
	text, err := datadir.ReadText(path)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("read %s: %w", path, err)
	}
	return value, nil
}
