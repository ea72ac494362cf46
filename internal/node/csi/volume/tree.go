package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// maxDepth limits how deeply nested folders are copied: each level keeps two files open.
const maxDepth = 1000

// copyTree copies the contents of source's directory to v's. It returns ErrInUse if a pod uses the
// source: unlike an image, a directory cannot be frozen, so its files would change during the copy.
func (s *Store) copyTree(ctx context.Context, v, source *Volume) error {
	used, err := s.InUse(source)
	if err != nil {
		return err
	}
	if used {
		return fmt.Errorf("%w by a pod, and a directory can be copied only while no pod uses it: delete the pod first", ErrInUse)
	}
	from, err := os.Open(source.data())
	if err != nil {
		return fmt.Errorf("open %s: %w", source.Name, err)
	}
	defer from.Close()
	into, err := os.Open(v.data())
	if err != nil {
		return fmt.Errorf("open %s: %w", v.Name, err)
	}
	defer into.Close()
	c := treeCopy{ctx: ctx, seen: map[uint64]string{}, top: into}
	if err := c.folder(into, from, "", 0); err != nil {
		return fmt.Errorf("copy %s: %w", source.Name, err)
	}
	s.onStep("copied")
	v.Reflinked = c.reflinked
	if err := unix.Syncfs(int(into.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", v.Name, datadir.Explain(err))
	}
	return nil
}

// treeCopy copies folders through open files, so that links cannot lead it elsewhere.
type treeCopy struct {
	ctx context.Context
	top *os.File
	// seen has the new path of each file with several names, by its inode.
	seen      map[uint64]string
	reflinked bool
}

func (c *treeCopy) folder(into, from *os.File, path string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folders are nested deeper than %d, such as %.80s", maxDepth, path)
	}
	for {
		names, err := from.Readdirnames(batch)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(into, from, name, path+"/"+name, depth); err != nil {
				return fmt.Errorf("%s: %w", name, noSpace(err))
			}
		}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &stat); err != nil {
		return err
	}
	return c.attributes(into, from, &stat)
}

func (c *treeCopy) entry(into, from *os.File, name, path string, depth int) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := stat.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && stat.Nlink > 1 {
		if first, ok := c.seen[stat.Ino]; ok {
			return unix.Linkat(int(c.top.Fd()), strings.TrimPrefix(first, "/"), int(into.Fd()), name, 0)
		}
		c.seen[stat.Ino] = path
	}
	switch kind {
	case unix.S_IFDIR:
		if err := unix.Mkdirat(int(into.Fd()), name, 0o700); err != nil {
			return err
		}
		return c.both(into, from, name, unix.O_RDONLY|unix.O_DIRECTORY, unix.O_RDONLY|unix.O_DIRECTORY, func(into, from *os.File) error {
			return c.folder(into, from, path, depth+1)
		})
	case unix.S_IFREG:
		return c.both(into, from, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, unix.O_RDONLY|unix.O_NONBLOCK, func(into, from *os.File) error {
			reflinked, err := copyFile(c.ctx, into, from)
			if err != nil {
				return err
			}
			c.reflinked = c.reflinked || reflinked
			return c.attributes(into, from, &stat)
		})
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(from.Fd()), name, target)
		if err == nil {
			err = unix.Symlinkat(string(target[:n]), int(into.Fd()), name)
		}
		if err == nil {
			err = unix.Fchownat(int(into.Fd()), name, int(stat.Uid), int(stat.Gid), unix.AT_SYMLINK_NOFOLLOW)
		}
		return err
	case unix.S_IFSOCK:
		return nil // a socket is useless without its listener
	default: // a pipe or a device
		return makeNode(int(into.Fd()), name, stat.Mode, uint64(stat.Rdev), int(stat.Uid), int(stat.Gid))
	}
}

// makeNode makes a pipe or a device. The mode has its kind.
func makeNode(folder int, name string, mode uint32, device uint64, uid, gid int) error {
	err := unix.Mknodat(folder, name, mode, int(device))
	if err == nil {
		err = unix.Fchownat(folder, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		// This file was just made and only root can reach it, so it cannot be a link.
		err = unix.Fchmodat(folder, name, mode&0o7777, 0)
	}
	return err
}

// both opens the files called name in both folders, and calls do with them.
func (c *treeCopy) both(into, from *os.File, name string, intoFlags, fromFlags uint64, do func(into, from *os.File) error) error {
	source, err := openBeneath(from, name, fromFlags)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := openBeneath(into, name, intoFlags)
	if err != nil {
		return err
	}
	defer target.Close()
	return do(target, source)
}

// attributes copies the owner, mode, extended attributes and times of a file or folder that has
// been copied.
func (c *treeCopy) attributes(into, from *os.File, stat *unix.Stat_t) error {
	if err := copyXattrs(int(into.Fd()), int(from.Fd())); err != nil {
		return err
	}
	// The owner comes first, because changing it removes setuid.
	if err := unix.Fchown(int(into.Fd()), int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(int(into.Fd()), stat.Mode&0o7777); err != nil {
		return err
	}
	times := []unix.Timeval{{Sec: stat.Atim.Sec, Usec: stat.Atim.Nsec / 1000}, {Sec: stat.Mtim.Sec, Usec: stat.Mtim.Nsec / 1000}}
	return unix.Futimes(int(into.Fd()), times)
}

func copyXattrs(into, from int) error {
	return eachXattr(from, func(name string, value []byte) error { return setXattr(into, name, value) })
}
