package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// errArchive says that an archive is not one that archiveTree has written.
var errArchive = errors.New("the archive of the volume is damaged")

// extraction makes the files of an archive in a folder. Everything is made through the open folder around it, so that neither links nor
// names can lead elsewhere.
type extraction struct {
	ctx context.Context
	// open has the folders from the top to the one that is being filled. Each gets its attributes when it is full.
	open []openFolder
}

type openFolder struct {
	file   *os.File
	path   string // ends with a slash
	header *tar.Header
}

// extractTree makes everything of an archive that archiveTree has written. The folder is empty.
func extractTree(ctx context.Context, top *os.File, r *tar.Reader) (err error) {
	x := extraction{ctx: ctx}
	defer func() {
		for _, folder := range x.open {
			folder.file.Close()
		}
	}()
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return x.leave("")
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := x.entry(top, header, r); err != nil {
			return fmt.Errorf("restore %.80q: %w", header.Name, noSpace(err))
		}
	}
}

// leave completes the open folders that do not have path in them.
func (x *extraction) leave(path string) error {
	for len(x.open) > 0 {
		last := x.open[len(x.open)-1]
		if path != "" && strings.HasPrefix(path, last.path) {
			return nil
		}
		if err := errors.Join(apply(last.file, last.header), last.file.Close()); err != nil {
			return fmt.Errorf("restore folder %.80q: %w", last.path, err)
		}
		x.open = x.open[:len(x.open)-1]
	}
	return nil
}

func (x *extraction) entry(top *os.File, h *tar.Header, content io.Reader) error {
	if len(x.open) == 0 {
		if h.Name != "./" || h.Typeflag != tar.TypeDir {
			return errArchive
		}
		return x.enter(top, ".", h)
	}
	if err := x.leave(h.Name); err != nil {
		return err
	}
	if len(x.open) == 0 {
		return errArchive
	}
	in := x.open[len(x.open)-1]
	name := strings.TrimSuffix(strings.TrimPrefix(h.Name, in.path), "/")
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return errArchive
	}
	folder := int(in.file.Fd())
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(folder, name, 0o700); err != nil {
			return err
		}
		return x.enter(in.file, name, h)
	case tar.TypeReg:
		file, err := openBeneath(in.file, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := writeSparse(file, &contextReader{x.ctx, content}, h.Size); err != nil {
			return err
		}
		return apply(file, h)
	case tar.TypeLink:
		return x.link(h.Linkname, folder, name)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, folder, name); err != nil {
			return err
		}
		if err := unix.Fchownat(folder, name, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		return setTime(folder, name, unix.AT_SYMLINK_NOFOLLOW, h)
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		kind := map[byte]uint32{tar.TypeFifo: unix.S_IFIFO, tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK}[h.Typeflag]
		if err := makeNode(folder, name, kind|uint32(h.Mode&0o7777), unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)), h.Uid, h.Gid); err != nil {
			return err
		}
		return setTime(folder, name, unix.AT_SYMLINK_NOFOLLOW, h)
	}
	return errArchive
}

// enter opens a folder that is there.
func (x *extraction) enter(parent *os.File, name string, h *tar.Header) error {
	if len(x.open) > maxDepth+1 {
		return errArchive
	}
	file, err := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	x.open = append(x.open, openFolder{file, h.Name, h})
	return nil
}

// link gives a file that was made before a second name.
func (x *extraction) link(first string, folder int, name string) error {
	inside, ok := strings.CutPrefix(first, "./")
	if !ok {
		return errArchive
	}
	file, err := openBeneath(x.open[0].file, inside, unix.O_PATH)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Linkat(unix.AT_FDCWD, openPath(file), folder, name, unix.AT_SYMLINK_FOLLOW)
}

// apply gives an open file its owner, mode, extended attributes and time.
func apply(file *os.File, h *tar.Header) error {
	fd := int(file.Fd())
	for record, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(record, xattrRecord); ok {
			if err := setXattr(fd, name, []byte(value)); err != nil {
				return fmt.Errorf("set attribute %s: %w", name, err)
			}
		}
	}
	// The owner comes first, because changing it removes setuid.
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	return setTime(unix.AT_FDCWD, openPath(file), 0, h)
}

// openPath returns a path of an open file.
func openPath(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }

// setTime sets when a file was changed.
func setTime(folder int, name string, flags int, h *tar.Header) error {
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(folder, name, []unix.Timespec{at, at}, flags)
}

// writeSparse writes a new file of a size, with holes where the content is zero.
func writeSparse(file *os.File, content io.Reader, size int64) error {
	if err := writeZeroed(file, content, size); err != nil {
		return err
	}
	return file.Truncate(size)
}

// writeZeroed writes content of a size over zeros.
func writeZeroed(file *os.File, content io.Reader, size int64) error {
	block, none := make([]byte, 64<<10), string(make([]byte, 64<<10))
	for at := int64(0); at < size; {
		n, err := io.ReadFull(content, block[:min(int64(len(block)), size-at)])
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if string(block[:n]) != none[:n] {
			if _, err := file.WriteAt(block[:n], at); err != nil {
				return datadir.Explain(noSpace(err))
			}
		}
		at += int64(n)
	}
	return nil
}
