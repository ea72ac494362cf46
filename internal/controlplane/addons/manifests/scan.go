package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// files are the files that are in the folder now.
type files struct {
	// contents are the contents of the files to apply, by their paths below the
	// folder.
	contents map[string][]byte
	// faults say why the other files cannot be read, by their paths too.
	faults map[string]error
	// skipped are files and folders that kedge leaves as they are.
	skipped []string
	// disabled are the names to disable for which there is a file or folder.
	disabled []string
}

// scan reads a folder. As in k3s, a file NAME.skip beside the file or folder NAME
// makes kedge leave NAME alone.
func scan(folder string, disabled []string) (*files, error) {
	found := &files{contents: map[string][]byte{}, faults: map[string]error{}}
	var paths []string
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			if file != folder && errors.Is(err, fs.ErrNotExist) {
				return nil // deleted meanwhile
			}
			return err
		}
		if entry.IsDir() {
			return nil
		}
		if file == folder {
			return errors.New("it is not a folder") // otherwise all objects would be removed
		}
		name, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		if skipped, ok := strings.CutSuffix(name, ".skip"); ok {
			found.skipped = append(found.skipped, skipped)
		} else if by := disabledBy(name, disabled); by != "" {
			found.disabled = append(found.disabled, by)
		} else if linksToFolder(file, entry) {
			found.faults[name] = errLink
		} else if isManifest(name) {
			paths = append(paths, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	maps.DeleteFunc(found.faults, func(name string, _ error) bool { return found.isSkipped(name) })
	for _, name := range paths {
		if found.isSkipped(name) {
			continue
		}
		content, err := datadir.ReadText(filepath.Join(folder, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile, or a dangling link
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

// errLink says that a file is a link to a folder.
var errLink = errors.New("this is a link to a folder, and kedge follows only links to files. Put the folder itself in place of the link, or links to its files")

// linksToFolder tells whether a file is a link to a folder, with whatever name: its user
// expects the files of the folder to be applied. Names that begin with a dot are not for
// users, such as those that a ConfigMap has in a volume.
func linksToFolder(file string, entry fs.DirEntry) bool {
	if entry.Type() != fs.ModeSymlink || strings.HasPrefix(entry.Name(), ".") {
		return false
	}
	info, err := os.Stat(file)
	return err == nil && info.IsDir()
}

// has tells whether there is a file of that name, readable or not.
func (f *files) has(name string) bool {
	_, here := f.contents[name]
	return here || f.faults[name] != nil
}

// isManifest tells whether a file is a manifest. It leaves out other files of
// editors.
func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) && !strings.HasPrefix(path.Base(name), ".")
}

// disabledBy returns the name in disabled that keeps a file from being applied, or
// an empty string. Such a name is that of a file without its extension, as in k3s,
// or that of a folder.
func disabledBy(name string, disabled []string) string {
	if base := strings.TrimSuffix(path.Base(name), path.Ext(name)); slices.Contains(disabled, base) {
		return base
	}
	return firstOf(path.Dir(name), disabled)
}

func (f *files) isSkipped(name string) bool { return firstOf(name, f.skipped) != "" }

// firstOf returns the path in paths that name is or is below, or an empty string.
func firstOf(name string, paths []string) string {
	for ; name != "."; name = path.Dir(name) {
		if slices.Contains(paths, name) {
			return name
		}
	}
	return ""
}
