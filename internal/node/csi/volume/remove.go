package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// beneath are the rules for opening a folder that pods can write to: never follow a link, never go
// up, and never enter another mount.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens the file or folder name in folder, by the rules of beneath.
func openBeneath(folder *os.File, name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(folder.Fd()), name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath})
	if err != nil {
		path := folder.Name() + "/" + name
		if errors.Is(err, unix.EXDEV) {
			return nil, fmt.Errorf("something is mounted at %s: unmount it first", path)
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), folder.Name()+"/"+name), nil
}

// removeFolder removes the folder base/name with its contents. It returns nil if there is none.
func removeFolder(ctx context.Context, base, name string) error {
	parent, err := os.Open(base)
	if err != nil {
		return fmt.Errorf("open %s: %w", base, datadir.Explain(err))
	}
	defer parent.Close()
	top, err := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer top.Close()
	if err := empty(ctx, top); err != nil {
		return fmt.Errorf("remove %s: %w", top.Name(), err)
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s: %w", top.Name(), err)
	}
	return parent.Sync()
}

// empty removes everything in top. It does not descend into folders, it moves them up to top: pods
// can nest folders deeper than the limits of file descriptors and paths allow. An interrupted call
// can be repeated.
func empty(ctx context.Context, top *os.File) error {
	for number := 0; ; {
		names, err := entries(top)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := unlink(top, name); err == nil {
				continue
			} else if !errors.Is(err, unix.EISDIR) {
				return err
			}
			folder, err := openBeneath(top, name, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			err = flatten(ctx, folder, top, &number)
			folder.Close()
			if err != nil {
				return err
			}
			if err := unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR); err != nil {
				return fmt.Errorf("remove folder: %w", err)
			}
		}
	}
}

// flatten removes the files in folder and moves its folders to top.
func flatten(ctx context.Context, folder, top *os.File, number *int) error {
	for {
		names, err := entries(folder)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			err := unlink(folder, name)
			if !errors.Is(err, unix.EISDIR) {
				if err != nil {
					return err
				}
				continue
			}
			for {
				*number++
				err = unix.Renameat2(int(folder.Fd()), name, int(top.Fd()), "."+strconv.Itoa(*number), unix.RENAME_NOREPLACE)
				if !errors.Is(err, unix.EEXIST) { // an interrupted removal left this name
					break
				}
			}
			switch {
			case errors.Is(err, unix.EBUSY):
				return fmt.Errorf("something is mounted at %s/%s: unmount it first", folder.Name(), name)
			case errors.Is(err, unix.EXDEV):
				return fmt.Errorf("%s is a subvolume: remove it with btrfs subvolume delete", folder.Name())
			case err != nil:
				return fmt.Errorf("move folder: %w", err)
			}
		}
	}
}

func unlink(folder *os.File, name string) error {
	err := unix.Unlinkat(int(folder.Fd()), name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("cannot remove %s/%s: if it is immutable, run chattr -R -ia %s: %w", folder.Name(), name, folder.Name(), err)
	}
	return err
}

// batch is how many entries of a folder are kept in memory.
const batch = 4096

// entries returns the first entries of a folder, at most batch.
func entries(folder *os.File) ([]string, error) {
	if _, err := folder.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := folder.Readdirnames(batch)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return names, err
}
