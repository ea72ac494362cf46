package assets

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// superseded tells whether root holds folders besides the helpers in use.
func superseded(root, digest string) bool {
	entries, err := os.ReadDir(root)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return entry.IsDir() && entry.Name() != digest })
}

// prune removes the helpers of other builds, and what an interruption has left. It keeps
// folders from which a process runs: the shim of a pod outlives kedge and starts runc
// from its own folder. A folder that cannot be removed stays for the next start, because
// it costs only space. The caller holds the lock.
func prune(root, digest, proc string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	running, err := executables(proc)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !entry.IsDir() || entry.Name() == digest {
			continue
		}
		folder := filepath.Join(root, entry.Name())
		if !anyBelow(running, folder) {
			// Renamed first, so that an incomplete folder never has the name.
			doomed := folder
			if !strings.HasPrefix(entry.Name(), tempPrefix) {
				doomed = filepath.Join(root, tempPrefix+entry.Name())
				if os.Rename(folder, doomed) != nil {
					continue
				}
			}
			os.RemoveAll(doomed)
		}
	}
}

// executables returns the paths of the programs of all running processes.
func executables(proc string) ([]string, error) {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "exe"))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, link := range links {
		// Kernel threads have no program, and a process may end meanwhile.
		if path, err := os.Readlink(link); err == nil {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

func anyBelow(paths []string, folder string) bool {
	// The kernel's paths have no symbolic links.
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	return slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, folder+string(filepath.Separator)) })
}
