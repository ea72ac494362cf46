package harness

import (
	"io/fs"
	"os"
	"path/filepath"
)

// helpersFolder is where kedge unpacks its helpers, below a host's folder.
const helpersFolder = "kedge/assets"

// ShareHelpers gives the host the helpers that kedge has unpacked on another host, by hard links. It
// must be called before the host's kedge starts. Each unpacked set takes 70 MB of disk and a second,
// which is much for many hosts.
func (h *Host) ShareHelpers(from *Host) {
	h.t.Helper()
	source, target := filepath.Join(from.dir, helpersFolder), filepath.Join(h.dir, helpersFolder)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := target + path[len(source):]
		switch {
		case entry.IsDir():
			return os.MkdirAll(to, 0o755)
		case filepath.Dir(path) == source:
			return nil // this is the lock file
		case entry.Type() == fs.ModeSymlink:
			leads, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(leads, to)
		}
		return os.Link(path, to)
	})
	if err != nil {
		h.t.Fatalf("share helpers of %s with %s: %v", from.Name, h.Name, err)
	}
}
