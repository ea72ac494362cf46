package session

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// User is the user to whom files belong, and the user's group.
type User struct{ ID, Group int }

// evidence is the folder of --logs. This process may be root, and the folder may be one in which other users
// write. So nothing there leads to another place, and what is written belongs to the user who ran sudo.
type evidence struct {
	root *os.Root
	user User
}

// openEvidence makes the folder if it is missing.
func openEvidence(folder string, user User) (*evidence, error) {
	if err := user.makeFolders(folder); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	return &evidence{root, user}, nil
}

// makeFolders is os.MkdirAll whose new folders belong to the user.
func (u User) makeFolders(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := u.makeFolders(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Lchown(path, u.ID, u.Group)
}

// write writes a file with its folders. It replaces a file of that name.
func (e *evidence) write(path string, text io.Reader) error {
	parts := strings.Split(filepath.Clean(path), "/")
	for i := 1; i < len(parts); i++ {
		folder := filepath.Join(parts[:i]...)
		err := e.root.Mkdir(folder, 0o755)
		if err == nil {
			err = e.root.Lchown(folder, e.user.ID, e.user.Group)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// The file that is there may be a link, or a pipe that nobody reads.
	if err := e.root.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := e.root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, text)
	return errors.Join(err, file.Chown(e.user.ID, e.user.Group), file.Close())
}

// copyFolder copies the regular files of a folder below root. Pods may have changed everything there, so nothing
// is followed to another place: an absolute link of a node would lead to a file of the machine.
func (e *evidence) copyFolder(root, from, to string) error {
	node, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("copy logs: %w", err)
	}
	defer node.Close()
	logs, err := node.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // There was no container yet.
	}
	if err != nil {
		return fmt.Errorf("copy logs: %w", err)
	}
	defer logs.Close()
	err = fs.WalkDir(logs.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return e.copyFile(logs, path, filepath.Join(to, path))
	})
	if err != nil {
		return fmt.Errorf("copy logs: %w", err)
	}
	return nil
}

// copyFile copies a file. A pod may put another file in its place at any time, such as a pipe that nobody writes.
func (e *evidence) copyFile(root *os.Root, from, to string) error {
	file, err := root.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return e.write(to, file)
}
