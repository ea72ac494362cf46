package assets

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Tool returns the path of a tool below root. At its first use it unpacks the tool into the folder of
// the helpers of this build, whether the helpers are there or not. The running kedge may be of another build.
func Tool(root, name string) (string, error) {
	files, err := fs.Sub(embedded, "embedded")
	if err != nil {
		return "", fmt.Errorf("open embedded helpers: %w", err)
	}
	return tool(files, root, name)
}

// RootOf returns the root below which helpers were unpacked, of which Paths.Bin is known.
func RootOf(bin string) string { return filepath.Dir(filepath.Dir(bin)) }

func tool(files fs.FS, root, name string) (string, error) {
	manifest, err := readManifest(files)
	if err != nil {
		return "", err
	}
	archived := "bin/" + name
	i := slices.IndexFunc(manifest.Files, func(f File) bool { return f.Path == archived })
	if i < 0 || !IsTool(archived) {
		return "", fmt.Errorf("%s is not a tool of this kedge", name)
	}
	folder := manifest.paths(root).folder()
	path := filepath.Join(folder, filepath.FromSlash(archived))
	if manifest.Files[i].check(folder) == nil {
		return path, nil
	}
	if err := place(files, manifest, root, archived, path); err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, datadir.Explain(err))
	}
	return path, nil
}

// place unpacks one file of the archive to path. Another process may do the same: the file appears all at
// once.
func place(files fs.FS, manifest Manifest, root, archived, path string) error {
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	temp, err := os.MkdirTemp(root, tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	unpacked := filepath.Join(temp, filepath.FromSlash(archived))
	if err := extract(files, manifest, temp, func(path string) bool { return path == archived }); err != nil {
		return err
	}
	if err := syncFilesystem(temp); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.Rename(unpacked, path)
}
