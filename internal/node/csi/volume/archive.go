package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// xattrRecord begins the names of the records of an archive that have extended attributes. tar and bsdtar use it.
const xattrRecord = "SCHILY.xattr."

// archive writes a folder to a tar archive. It reads through open files, so that links cannot lead it elsewhere.
type archive struct {
	ctx context.Context
	w   *tar.Writer
	// seen has the path of each file with several names, by its inode.
	seen map[uint64]string
}

// archiveTree writes the folder and everything in it. A folder comes before what it has.
func archiveTree(ctx context.Context, top *os.File, w *tar.Writer) error {
	a := archive{ctx, w, map[uint64]string{}}
	return a.folder(top, "./", 0)
}

func (a *archive) folder(folder *os.File, path string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folders are nested deeper than %d, such as %.80s", maxDepth, path)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(folder.Fd()), &stat); err != nil {
		return err
	}
	if err := a.header(path, tar.TypeDir, &stat, folder, ""); err != nil {
		return err
	}
	for {
		names, err := folder.Readdirnames(batch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := a.ctx.Err(); err != nil {
				return err
			}
			// In a folder that is not frozen, files may end meanwhile.
			if err := a.entry(folder, name, path+name, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
}

func (a *archive) entry(folder *os.File, name, path string, depth int) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(folder.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := stat.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && stat.Nlink > 1 {
		if first, ok := a.seen[stat.Ino]; ok {
			return a.header(path, tar.TypeLink, &stat, nil, first)
		}
		a.seen[stat.Ino] = path
	}
	switch kind {
	case unix.S_IFDIR:
		inner, err := openBeneath(folder, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer inner.Close()
		return a.folder(inner, path+"/", depth+1)
	case unix.S_IFREG:
		file, err := openBeneath(folder, name, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		defer file.Close()
		return a.file(file, path)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(folder.Fd()), name, target)
		if err != nil {
			return err
		}
		return a.header(path, tar.TypeSymlink, &stat, nil, string(target[:n]))
	case unix.S_IFSOCK:
		return nil // a socket is useless without its listener
	case unix.S_IFIFO:
		return a.header(path, tar.TypeFifo, &stat, nil, "")
	case unix.S_IFCHR:
		return a.header(path, tar.TypeChar, &stat, nil, "")
	default:
		return a.header(path, tar.TypeBlock, &stat, nil, "")
	}
}

// file writes a regular file. It has the size that it has at the beginning, also if it changes meanwhile.
func (a *archive) file(file *os.File, path string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return err
	}
	if err := a.header(path, tar.TypeReg, &stat, file, ""); err != nil {
		return err
	}
	n, err := io.Copy(a.w, &contextReader{a.ctx, io.LimitReader(file, stat.Size)})
	if err == nil {
		_, err = io.CopyN(a.w, zeros{}, stat.Size-n)
	}
	return err
}

// header writes what is known of a file. Extended attributes are those of the open file, if there is one.
func (a *archive) header(path string, kind byte, stat *unix.Stat_t, file *os.File, link string) error {
	h := tar.Header{
		Format: tar.FormatPAX, Typeflag: kind, Name: path, Linkname: link, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		ModTime: time.Unix(stat.Mtim.Unix()),
	}
	switch kind {
	case tar.TypeReg:
		h.Size = stat.Size
	case tar.TypeChar, tar.TypeBlock:
		h.Devmajor, h.Devminor = int64(unix.Major(uint64(stat.Rdev))), int64(unix.Minor(uint64(stat.Rdev)))
	}
	if file != nil {
		h.PAXRecords = map[string]string{}
		if err := eachXattr(int(file.Fd()), func(name string, value []byte) error {
			h.PAXRecords[xattrRecord+name] = string(value)
			return nil
		}); err != nil {
			return err
		}
	}
	return a.w.WriteHeader(&h)
}

// contextReader fails when its context ends.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// zeros reads as zeros without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// eachXattr calls each with the extended attributes of an open file.
func eachXattr(file int, each func(name string, value []byte) error) error {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(file, list)
	if errors.Is(err, unix.EOPNOTSUPP) || n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		n, err := unix.Fgetxattr(file, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = each(name, value[:n])
		}
		if err != nil {
			return fmt.Errorf("copy attribute %s: %w", name, err)
		}
	}
	return nil
}

// setXattr sets an extended attribute of an open file, if its file system has any.
func setXattr(file int, name string, value []byte) error {
	if err := unix.Fsetxattr(file, name, value, 0); !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}
