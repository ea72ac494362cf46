package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// listFolder returns the snapshots on this host. It ignores other files in the
// folder.
func (c *Config) listFolder() ([]File, error) {
	entries, err := os.ReadDir(c.folder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	files := []File{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), suffix) || strings.HasPrefix(entry.Name(), ".") || !entry.Type().IsRegular() {
			continue
		}
		f, err := describe(filepath.Join(c.folder(), entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		files = append(files, *f)
	}
	return files, nil
}

// describe reads the manifest of a snapshot. It does not check the content,
// because that would mean reading all of it.
func describe(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f := &File{Name: filepath.Base(path), Location: schemeFile + path, Size: info.Size(), Created: info.ModTime().UTC()}
	r, err := open(path)
	if err != nil {
		f.Error = err.Error()
		return f, nil
	}
	defer r.close()
	if r.Format <= formatVersion {
		f.Node, f.Created = r.Node, r.Time
	}
	return f, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
