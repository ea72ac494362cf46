// Package assets carries the helpers and the pause image, compressed, and unpacks them
// below the data directory. Helpers are executables that must be separate programs: runc,
// its shim, the CNI plugins, nft and iptables. The commands that need helpers call Unpack when
// they start. Tools are executables that only users call: crictl. Each is unpacked at its first
// use, because it is half as large as all helpers together. `make` fills the embedded folder.
package assets

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

//go:embed all:embedded
var embedded embed.FS

// PauseImage is the name of the image in the archive Paths.PauseArchive. A new pause
// image needs a new tag.
const PauseImage = "kedge.local/pause:1"

// ErrNotBuilt is returned by Find and Unpack if the executable has no helpers in it.
var ErrNotBuilt = errors.New("this kedge was built without its helpers: build it with make")

// Paths are the paths of the helpers.
type Paths struct {
	// Bin is the folder of the executables. It must come first in PATH. The CNI plugins
	// are in it under their own names.
	Bin string
	// Images is the folder of the image archives.
	Images string
	// PauseArchive is the OCI archive, in Images, of PauseImage.
	PauseArchive string
	// Digest identifies this set of helpers: sixteen hexadecimal digits.
	Digest string
}

// Manifest describes the embedded archive. scripts/pack writes both.
type Manifest struct {
	// SHA256 is the digest of the compressed archive, in hexadecimal.
	SHA256 string
	// Files are all entries of the archive except folders, in its order: the tools are the last.
	Files []File
}

// tools are the paths of those files that are unpacked at their first use.
var tools = []string{"bin/crictl"}

// IsTool tells whether a file is unpacked at its first use. The argument is its path in the archive.
func IsTool(path string) bool { return slices.Contains(tools, path) }

// File is a regular file or a symbolic link.
type File struct {
	Path       string // relative, with slashes
	Executable bool   `json:",omitempty"`
	Size       int64  `json:",omitempty"` // bytes
	Link       string `json:",omitempty"` // target of a symbolic link
}

// Names in the embedded folder.
const (
	ArchiveName  = "helpers.tar.zst"
	ManifestName = "manifest.json"
)

// ModTime is the modification time of every unpacked file. A file that was changed later
// has another one.
var ModTime = time.Unix(1, 0)

// WindowSize is how far back, in bytes, the compression of the archive refers. Unpacking
// needs as much memory, once. The helpers are Go programs and have much in common, so a
// window over several of them saves a fifth.
const WindowSize = 32 << 20

// Find returns the paths to which Unpack unpacks the helpers below root, without
// unpacking them.
func Find(root string) (Paths, error) {
	files, err := fs.Sub(embedded, "embedded")
	if err != nil {
		return Paths{}, fmt.Errorf("open embedded helpers: %w", err)
	}
	manifest, err := readManifest(files)
	if err != nil {
		return Paths{}, err
	}
	return manifest.paths(root), nil
}

// Unpack makes sure that the helpers are complete in a folder below root, and returns
// their paths. The folder appears all at once or not at all. A folder that is incomplete
// or damaged is replaced. Helpers of other builds are removed once no process runs them.
//
// Every start calls Unpack. So it compares the size, mode and modification time of each
// file with the manifest, which takes a millisecond, and not the digest, which takes a
// second on a small board. The data are synced before the folder gets its name. So only
// somebody who restores the old time on purpose can change a file unnoticed.
func Unpack(root string) (Paths, error) {
	files, err := fs.Sub(embedded, "embedded")
	if err != nil {
		return Paths{}, fmt.Errorf("open embedded helpers: %w", err)
	}
	defer release(embedded)
	return unpack(files, root, "/proc")
}

func unpack(files fs.FS, root, proc string) (Paths, error) {
	manifest, err := readManifest(files)
	if err != nil {
		return Paths{}, err
	}
	paths := manifest.paths(root)
	if check(paths.folder(), manifest) == nil && !superseded(root, paths.Digest) {
		return paths, nil
	}
	unlock, err := lock(root)
	if err != nil {
		// The helpers are here, and a failure to remove old ones is no reason to fail:
		// this may be `kedge crictl` on a data directory that is mounted read-only.
		if check(paths.folder(), manifest) == nil {
			return paths, nil
		}
		return Paths{}, fmt.Errorf("unpack helpers: %w", datadir.Explain(err))
	}
	defer unlock()
	// Another process may have unpacked while this one waited for the lock.
	if check(paths.folder(), manifest) != nil {
		if err := replace(files, manifest, root, paths.folder()); err != nil {
			return Paths{}, fmt.Errorf("unpack helpers: %w", datadir.Explain(err))
		}
	}
	prune(root, paths.Digest, proc)
	return paths, nil
}

// paths returns the paths of the helpers of m below root, in a folder named by their
// digest.
func (m *Manifest) paths(root string) Paths {
	digest := m.SHA256[:16]
	folder := filepath.Join(root, digest)
	return Paths{
		Bin:          filepath.Join(folder, "bin"),
		Images:       filepath.Join(folder, "images"),
		PauseArchive: filepath.Join(folder, "images", "pause.tar"),
		Digest:       digest,
	}
}

// folder is the folder that appears all at once or not at all.
func (p Paths) folder() string { return filepath.Dir(p.Bin) }

func readManifest(files fs.FS) (Manifest, error) {
	var manifest Manifest
	data, err := fs.ReadFile(files, ManifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return manifest, ErrNotBuilt
	}
	if err != nil {
		return manifest, fmt.Errorf("read embedded manifest: %w", err)
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return manifest, fmt.Errorf("decode embedded manifest: %w", err)
	}
	if len(manifest.SHA256) != 64 || len(manifest.Files) == 0 {
		return manifest, errors.New("embedded manifest is incomplete: build kedge again with make")
	}
	return manifest, nil
}

// check fails if a helper is not as it was unpacked.
func check(folder string, manifest Manifest) error {
	for _, f := range manifest.Files {
		if IsTool(f.Path) {
			continue
		}
		if err := f.check(folder); err != nil {
			return err
		}
	}
	return nil
}

// check fails if the file in folder is not as it was unpacked.
func (f File) check(folder string) error {
	path := filepath.Join(folder, filepath.FromSlash(f.Path))
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if f.Link != "" {
		if target, err := os.Readlink(path); err != nil || target != f.Link {
			return fmt.Errorf("%s is no longer the link that kedge made", path)
		}
		return nil
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != f.Mode() || info.Size() != f.Size || !info.ModTime().Equal(ModTime) {
		return fmt.Errorf("%s was changed since kedge unpacked it", path)
	}
	return nil
}

// Mode is the permissions of an unpacked regular file.
func (f File) Mode() fs.FileMode {
	if f.Executable {
		return 0o755
	}
	return 0o644
}

// lock keeps other processes from unpacking in root. The kernel releases the lock when
// the process ends, in whatever way.
func lock(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}
