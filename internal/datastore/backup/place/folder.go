package place

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// folder is a place on a file system. kedge keeps no file open between two calls, so that the user can unmount the disk.
type folder string

// unfinished begins the names of files that are being written.
const unfinished = ".unfinished-"

func (f folder) String() string { return "file://" + string(f) }

// Prepare implements Place.
func (f folder) Prepare(context.Context) error {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return fmt.Errorf("make the folder of the backup: %w", datadir.Explain(err))
	}
	return datadir.WriteFile(f.path(markName), []byte(mark), 0o600)
}

func (f folder) path(name string) string { return filepath.Join(string(f), filepath.FromSlash(name)) }

// open opens the folder. It fails if that is not the place, such as the folder in which a disk would be mounted.
func (f folder) open() (*os.Root, error) {
	root, err := os.OpenRoot(string(f))
	if err == nil {
		if _, err = root.Lstat(markName); err == nil {
			return root, nil
		}
		root.Close()
	}
	return nil, fmt.Errorf("%w: open %s: %w. Plug in or mount the disk, or make a new backup there with `kedge backup key`", ErrAbsent, f, err)
}

// there fails if the folder is not the place.
func (f folder) there() error {
	root, err := f.open()
	if err == nil {
		root.Close()
	}
	return err
}

// Create implements Place. The name is given only after the content is on the disk. Nothing is written into a folder from which the disk has just gone.
func (f folder) Create(_ context.Context, name string, content []byte) error {
	root, err := f.open()
	if err != nil {
		return err
	}
	defer root.Close()
	path, parent := f.path(name), filepath.Dir(filepath.FromSlash(name))
	if err := root.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, datadir.Explain(err))
	}
	within, err := root.OpenRoot(parent)
	if err != nil {
		return fmt.Errorf("open the folder of %s: %w", path, datadir.Explain(err))
	}
	defer within.Close()
	temporary := unfinished + rand.Text()
	defer within.Remove(temporary)
	if err := writeSynced(within, temporary, content); err != nil {
		return fmt.Errorf("write %s: %w", path, datadir.Explain(err))
	}
	opened, err := within.Open(".")
	if err != nil {
		return fmt.Errorf("open the folder of %s: %w", path, datadir.Explain(err))
	}
	defer opened.Close()
	// Unlike a link, this also works on the file systems of USB disks.
	err = unix.Renameat2(int(opened.Fd()), temporary, int(opened.Fd()), filepath.Base(path), unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", path, ErrExists)
	}
	if err == nil {
		err = opened.Sync()
	}
	if err != nil {
		return fmt.Errorf("name %s: %w", path, datadir.Explain(err))
	}
	return nil
}

// writeSynced writes a new file, and waits until its content is on the disk.
func writeSynced(in *os.Root, name string, content []byte) error {
	file, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// Read implements Place.
func (f folder) Read(_ context.Context, name string) ([]byte, error) {
	file, err := datadir.OpenRegular(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		if err := f.there(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("read %s: %w", f.path(name), ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", datadir.Explain(err))
	}
	defer file.Close()
	return readAll(file, f.path(name))
}

// readAll reads a file of at most MaxFile bytes.
func readAll(r io.Reader, name string) ([]byte, error) {
	var content bytes.Buffer
	n, err := content.ReadFrom(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if n > MaxFile {
		return nil, fmt.Errorf("%s is larger than a file of a backup can be", name)
	}
	return content.Bytes(), nil
}

// Names implements Place.
func (f folder) Names(_ context.Context, in string) ([]string, error) {
	entries, err := os.ReadDir(f.path(in))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, f.there()
	}
	if err != nil {
		return nil, fmt.Errorf("list backup: %w", datadir.Explain(err))
	}
	var names []string
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), unfinished):
		case e.IsDir():
			names = append(names, e.Name()+"/")
		default:
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Remove implements Place. It also removes a folder that becomes empty.
func (f folder) Remove(_ context.Context, name string) error {
	root, err := f.open()
	if err != nil {
		return err
	}
	defer root.Close()
	name = filepath.FromSlash(name)
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete %s: %w", f.path(name), datadir.Explain(err))
	}
	_ = root.Remove(filepath.Dir(name)) // fails if it has other files
	return nil
}

// SameDisk tells whether a place is a folder on the file system that has a path.
func SameDisk(at Place, path string) bool {
	f, ok := at.(folder)
	var one, other unix.Stat_t
	return ok && unix.Stat(string(f), &one) == nil && unix.Stat(path, &other) == nil && one.Dev == other.Dev
}
