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

// beneath is how a folder that pods can write to is opened: never through a link,
// up, or into what is mounted there.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens a file of folder.
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

// removeFolder removes the folder name of base with all that is in it. One that is
// not there is fine.
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

// empty removes all that is in top. Folders are not descended into, but moved up to
// top: pods can nest them deeper than there are file descriptors or bytes in a
// path. Interrupted, it may be called again.
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

// flatten removes the files of folder and moves its folders to top.
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
				if !errors.Is(err, unix.EEXIST) { // of an interrupted removal
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
		return fmt.Errorf("%s/%s cannot be removed: if it is immutable, chattr -R -ia %s: %w", folder.Name(), name, folder.Name(), err)
	}
	return err
}

// batch is how many entries of a folder are in memory.
const batch = 4096

// entries returns some of what is in a folder, from the beginning.
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
