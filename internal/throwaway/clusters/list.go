package clusters

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// Known is a cluster with what it does now.
type Known struct {
	Cluster
	Status
}

// List returns the clusters of the store, by name. It changes nothing.
func (s Store) List() ([]Known, error) {
	var list []Known
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if known, err := s.Find(name); err == nil {
			list = append(list, known)
		}
	}
	return list, nil
}

// Find returns one cluster. It fails with ErrUnknown if there is none of that name.
func (s Store) Find(name string) (Known, error) {
	fail := fmt.Errorf("find cluster %q: %w", name, ErrUnknown)
	if CheckName(name) != nil {
		return Known{}, fail
	}
	cluster, err := s.record(name)
	if err != nil {
		return Known{}, fail
	}
	known := Known{cluster, Status{State: Stopped}}
	if s.runs(name) {
		if known.Status, err = read[Status](filepath.Join(s.RunFolder(name), statusFile)); err != nil {
			known.State = Starting
		}
	} else if cluster.Temporary {
		return Known{}, fail // It was killed.
	}
	return known, nil
}

// record reads the record of a cluster, wherever it is.
func (s Store) record(name string) (Cluster, error) {
	cluster, err := read[Cluster](filepath.Join(s.RunFolder(name), clusterFile))
	if err != nil && s.Data != "" {
		cluster, err = read[Cluster](filepath.Join(s.DataFolder(name), clusterFile))
	}
	if err == nil && cluster.Name != name {
		err = fmt.Errorf("the record of cluster %s is of another name", name)
	}
	return cluster, err
}

// names returns the names of all folders in the store.
func (s Store) names() ([]string, error) {
	var names []string
	for _, folder := range []string{s.Run, s.Data} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && folder != "" {
			return nil, fmt.Errorf("list clusters: %w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
				names = append(names, entry.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// runs tells whether a process holds the lock of a cluster.
func (s Store) runs(name string) bool {
	file, err := os.Open(filepath.Join(s.RunFolder(name), lockFile))
	if err != nil {
		return false
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// clear removes what killed clusters have left, and returns the clusters that there are. The caller has the
// lock of the store.
func (s Store) clear() ([]Cluster, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var clusters []Cluster
	var killed []string
	alive := map[uint64]bool{}
	for _, name := range names {
		cluster, err := s.record(name)
		running := s.runs(name)
		if running {
			status, _ := read[Status](filepath.Join(s.RunFolder(name), statusFile))
			for _, device := range status.Devices {
				alive[device] = true
			}
		} else if _, err := os.Stat(s.RunFolder(name)); err == nil {
			killed = append(killed, name)
		}
		if err == nil && (running || !cluster.Temporary) {
			clusters = append(clusters, cluster)
		}
	}
	for _, name := range killed {
		if err := s.clearOne(name, alive); err != nil {
			return nil, fmt.Errorf("remove what the killed cluster %s has left: %w", name, err)
		}
	}
	return clusters, nil
}

// clearOne removes what is only there while a cluster runs: its cgroups, the loop devices of its volumes,
// and its folder. Devices in alive are those of clusters that run.
func (s Store) clearOne(name string, alive map[uint64]bool) error {
	folder := s.RunFolder(name)
	if cluster, err := s.record(name); os.Geteuid() == 0 && (err != nil || !cluster.APIOnly) {
		if err := hosts.RemoveCgroups(cgroupOf(name)); err != nil {
			return err
		}
		status, _ := read[Status](filepath.Join(folder, statusFile))
		devices := slices.DeleteFunc(status.Devices, func(d uint64) bool { return alive[d] })
		err := errors.Join(hosts.DetachLoopsOn(devices, datadir.Dir(config.Default().DataDir).Storage()), hosts.DetachLoops(s.DataFolder(name)))
		if err != nil {
			return err
		}
	}
	return removeLast(folder, lockFile, statusFile, clusterFile)
}

// removeLast removes a folder, and the files named last after everything else. So an interrupted removal can
// be repeated: the cluster is still known.
func removeLast(folder string, last ...string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range removalOrder(entries, last) {
		if err := os.RemoveAll(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(folder)
}

// removalOrder returns the names of entries, those in last at the end, in the order of last.
func removalOrder(entries []fs.DirEntry, last []string) []string {
	var names []string
	for _, entry := range entries {
		if !slices.Contains(last, entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return append(names, last...)
}
