package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// files are those that are in the folder now.
type files struct {
	// contents are those to apply, by their paths below the folder.
	contents map[string][]byte
	// faults are why the others cannot be read, by their paths too.
	faults map[string]error
	// skipped are files and folders that are to be left as they are.
	skipped []string
	// disabled are those of the names to disable that something here has.
	disabled []string
}

// scan reads a folder. As in k3s, NAME.skip, beside the file or the folder NAME,
// keeps kedge from doing anything about it.
func scan(folder string, disabled []string) (*files, error) {
	found := &files{contents: map[string][]byte{}, faults: map[string]error{}}
	var paths []string
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			if file != folder && errors.Is(err, fs.ErrNotExist) {
				return nil // gone since
			}
			return err
		}
		if entry.IsDir() {
			return nil
		}
		if file == folder {
			return errors.New("it is none") // or all would be gone
		}
		name, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		if skipped, ok := strings.CutSuffix(name, ".skip"); ok {
			found.skipped = append(found.skipped, skipped)
		} else if by := disabledBy(name, disabled); by != "" {
			found.disabled = append(found.disabled, by)
		} else if isManifest(name) {
			paths = append(paths, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	for _, name := range paths {
		if found.isSkipped(name) {
			continue
		}
		content, err := datadir.ReadText(filepath.Join(folder, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // gone since, or a link to nothing
		case err != nil:
			found.faults[name] = unread(err)
		default:
			found.contents[name] = content
		}
	}
	return found, nil
}

// unread returns why a file cannot be read, without its name.
func unread(err error) error {
	if fault, ok := errors.AsType[*fs.PathError](err); ok {
		return fault.Err
	}
	return err
}

// has tells whether there is a file of a name, which may be one that cannot be read.
func (f *files) has(name string) bool {
	_, here := f.contents[name]
	return here || f.faults[name] != nil
}

// isManifest leaves out what editors make besides.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) && !strings.HasPrefix(path.Base(name), ".")
}

// disabledBy returns which of the names keeps a file from being applied, or nothing.
// A name is that of a file without its end, as in k3s, or a folder.
func disabledBy(name string, disabled []string) string {
	if base := strings.TrimSuffix(path.Base(name), path.Ext(name)); slices.Contains(disabled, base) {
		return base
	}
	return firstOf(path.Dir(name), disabled)
}

func (f *files) isSkipped(name string) bool { return firstOf(name, f.skipped) != "" }

// firstOf returns which of paths name is, or is below, or nothing.
func firstOf(name string, paths []string) string {
	for ; name != "."; name = path.Dir(name) {
		if slices.Contains(paths, name) {
			return name
		}
	}
	return ""
}
