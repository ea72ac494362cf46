package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// copyStep is how many bytes are copied between checks of the context.
const copyStep = 64 << 20

// Of linux/fs.h.
const (
	fiFreeze = 0xc0045877 // FIFREEZE
	fiThaw   = 0xc0045878 // FITHAW
)

// copyFile copies from to the empty file into, without holes and blocks that were allocated but never
// written. If the file system can, the files share their blocks, and reflinked is true.
func copyFile(ctx context.Context, into, from *os.File) (reflinked bool, err error) {
	err = unix.IoctlFileClone(int(into.Fd()), int(from.Fd()))
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.ETXTBSY) {
		return false, noSpace(err)
	}
	info, err := from.Stat()
	if err != nil {
		return false, err
	}
	size := info.Size()
	if err := into.Truncate(size); err != nil {
		return false, noSpace(err)
	}
	ranges, err := dataRanges(from, size)
	if err != nil {
		return false, err
	}
	for _, data := range ranges {
		if err := copyRange(ctx, into, from, data); err != nil {
			return false, err
		}
	}
	return false, nil
}

// span is a part of a file.
type span struct{ begin, end int64 }

// dataRanges returns the parts of a file that have data. All of them are found before one is read,
// because unwritten allocated blocks count as data after they have been read ahead.
func dataRanges(file *os.File, size int64) ([]span, error) {
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	var ranges []span
	for offset := int64(0); offset < size; {
		begin, err := unix.Seek(int(file.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole is left
			break
		}
		if errors.Is(err, unix.EINVAL) { // the file system does not tell holes from data
			return []span{{0, size}}, nil
		}
		var end int64
		if err == nil {
			end, err = unix.Seek(int(file.Fd()), begin, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, fmt.Errorf("find data: %w", err)
		}
		ranges, offset = append(ranges, span{begin, min(end, size)}), end
	}
	return ranges, nil
}

func copyRange(ctx context.Context, into, from *os.File, data span) error {
	for begin := data.begin; begin < data.end; begin += copyStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := into.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if _, err := from.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		// io.CopyN copies in the kernel, by copy_file_range(2). If a pod has truncated the file
		// in the meantime, the copy ends early.
		if _, err := io.CopyN(into, from, min(copyStep, data.end-begin)); err != nil && !errors.Is(err, io.EOF) {
			return noSpace(err)
		}
	}
	return nil
}

// copyImage copies source's image to v's, and extends it to v's size.
//
// If pods use the source, its file system is frozen during the copy: it writes out all data, and
// writers wait. So the copy is cleaner than a disk after a power cut. With reflinks this takes an
// instant, otherwise pods that write wait until the whole image is copied.
func (s *Store) copyImage(ctx context.Context, v, source *Volume) error {
	from, err := os.OpenFile(source.image(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open image of %s: %w", source.Name, err)
	}
	defer from.Close()
	into, err := os.OpenFile(v.image(), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make image: %w", datadir.Explain(err))
	}
	defer into.Close()
	s.onStep("copy begun")
	thaw, err := s.freeze(source)
	if err != nil {
		return err
	}
	s.onStep("frozen")
	reflinked, err := copyFile(ctx, into, from)
	if err := errors.Join(err, thaw()); err != nil {
		return fmt.Errorf("copy %s: %w", source.Name, err)
	}
	v.Reflinked = reflinked
	s.onStep("copied")
	info, err := into.Stat()
	if err != nil {
		return fmt.Errorf("look at image: %w", err)
	}
	// The source is larger than its record says if an expansion of it was interrupted.
	v.Size = max(v.Size, info.Size())
	if v.Snapshot { // a snapshot needs only the space of its data
		return noSpace(into.Sync())
	}
	return allocate(into, v.Size)
}

// dataBytes returns how many bytes a copy of an image takes.
func dataBytes(image string) (int64, error) {
	file, err := os.Open(image)
	if err != nil {
		return 0, fmt.Errorf("open image: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at image: %w", err)
	}
	ranges, err := dataRanges(file, info.Size())
	var sum int64
	for _, data := range ranges {
		sum += data.end - data.begin
	}
	return sum, err
}

// freeze stops writes to the mounted file system of a volume until thaw is called. If kedge is killed
// in between, Thaw thaws it at the next start.
func (s *Store) freeze(v *Volume) (thaw func() error, err error) {
	none := func() error { return nil }
	dev, err := attached(v.image())
	if dev == nil {
		return none, err
	}
	defer dev.Close()
	if v.Block {
		if used, err := s.InUse(v); err != nil || !used {
			return none, err
		}
		return none, fmt.Errorf("%w by a pod as a raw block device and cannot be copied: delete the pod first", ErrInUse)
	}
	root, err := openMounted(dev)
	if err != nil {
		return none, err
	}
	if root == nil {
		// The file system is mounted in a mount namespace that is about to end.
		return none, fmt.Errorf("%s is being unmounted: %w", v.Name, ErrBusy)
	}
	if err := unix.IoctlSetInt(int(root.Fd()), fiFreeze, 0); err != nil {
		root.Close()
		if errors.Is(err, unix.EBUSY) {
			return none, fmt.Errorf("the file system of %s was frozen by another program: thaw it (fsfreeze --unfreeze %s): %w", v.Name, root.Name(), ErrBusy)
		}
		return none, fmt.Errorf("freeze file system: %w", err)
	}
	return func() error { return errors.Join(thawFS(root), root.Close()) }, nil
}

func thawFS(root *os.File) error {
	if err := unix.IoctlSetInt(int(root.Fd()), fiThaw, 0); err != nil {
		return fmt.Errorf("thaw file system: %w", err)
	}
	return nil
}

// openMounted opens the root of a device's file system. It returns nil if the device is not mounted.
func openMounted(dev *os.File) (*os.File, error) {
	path, err := mountedAt(dev)
	if path == "" {
		return nil, err
	}
	root, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open file system: %w", err)
	}
	return root, nil
}
