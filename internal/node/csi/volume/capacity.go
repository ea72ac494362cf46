package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// MinSize is the smallest volume: less than this is mostly a journal.
	MinSize = 16 << 20
	// DefaultSize is that of a claim which does not say.
	DefaultSize = 1 << 30
	// MinXFS is the smallest file system that mkfs.xfs makes.
	MinXFS = 300 << 20

	sizeStep = 1 << 20
)

// Room returns how many bytes a new volume such as spec, whatever its size, can
// have at most.
//
// Images are allocated whole when they are made, so what df shows as free is free:
// a disk that others fill must not make writes of a volume fail that was promised
// the room, since a file system that loses writes is damaged. What was promised
// but is not taken yet is subtracted: the rest of quotas, what reflinked copies
// share, and take for themselves when it is written to, and holes that the kernel
// has made in images.
func (s *Store) Room(spec Spec) (int64, error) {
	if spec.Base == "" {
		spec.Base = s.base
	}
	if err := s.checkBase(spec.Base); err != nil {
		return 0, err
	}
	if _, err := kindFor(&spec, nil); err != nil {
		return 0, err
	}
	return s.room(spec.Base, "")
}

// room leaves the promise to one volume out.
func (s *Store) room(base, without string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(base, &disk); err != nil {
		return 0, fmt.Errorf("measure %s: %w", base, err)
	}
	device, err := deviceOf(base)
	if err != nil {
		return 0, err
	}
	volumes, err := s.List()
	if err != nil {
		return 0, err // a damaged record may have promised anything
	}
	room := int64(disk.Bavail)*int64(disk.Bsize) - s.reserve(&disk, device)
	for _, v := range volumes {
		if v.Name == without {
			continue
		}
		if other, err := deviceOf(v.Base); err == nil && other == device {
			room -= v.promised()
		}
	}
	return max(0, room&^(sizeStep-1)), nil
}

// reserve is what volumes leave free of a file system: where the node's own files
// are, enough that the kubelet does not begin to evict pods (at 5 %, and until 15 %
// are free again: node/kubelet/configuration.go), and elsewhere what file systems need
// to keep books of large files.
func (s *Store) reserve(disk *unix.Statfs_t, device uint64) int64 {
	total := int64(disk.Blocks) * int64(disk.Bsize)
	if node, err := deviceOf(s.node); err == nil && node == device {
		return total / 10
	}
	return total / 100
}

// promised is what a volume may take of its disk beyond what it has taken.
func (v *Volume) promised() int64 {
	switch v.Kind {
	case Image:
		var stat unix.Stat_t
		_ = unix.Lstat(v.image(), &stat) // not made yet: it has taken nothing
		holes := max(0, v.Size-stat.Blocks*512)
		if v.Snapshot {
			holes = 0 // it does not grow
		}
		if v.Reflinked {
			return holes + sharedBytes(v.image(), v.Size)
		}
		return holes
	case Quota:
		used, _ := quotaUsed(v.Base, v.Project)
		var more int64
		if !v.Snapshot {
			more = max(0, v.Size-used)
		}
		if v.Reflinked {
			more += used // which counts what is shared, too
		}
		return more
	}
	return 0
}

// sharedBytes is how much of a file it shares with others, at most most, which is
// also the answer if the file system does not tell.
func sharedBytes(path string, most int64) int64 {
	file, err := os.Open(path)
	if err != nil {
		return most
	}
	defer file.Close()
	// Of linux/fiemap.h.
	const (
		fiemap = 0xc020660b // FS_IOC_FIEMAP
		last   = 0x1        // FIEMAP_EXTENT_LAST
		shared = 0x2000     // FIEMAP_EXTENT_SHARED
	)
	var request struct {
		start, length                  uint64
		flags, mapped, count, reserved uint32
		extents                        [512]struct {
			logical, physical, length uint64
			_                         [2]uint64
			flags                     uint32
			_                         [3]uint32
		}
	}
	var sum int64
	for {
		request.length, request.count = ^uint64(0)-request.start, uint32(len(request.extents))
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), fiemap, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return most
		}
		for _, extent := range request.extents[:request.mapped] {
			if extent.flags&shared != 0 {
				sum += int64(extent.length)
			}
			if extent.flags&last != 0 {
				return min(sum, most)
			}
			request.start = extent.logical + extent.length
		}
		if request.mapped == 0 {
			return min(sum, most)
		}
	}
}

// checkBase refuses a base directory that is not there. Only the default one is
// made: another is a disk of the user's, which may not be mounted.
func (s *Store) checkBase(base string) error {
	if base == s.base {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return fmt.Errorf("make storage directory: %w", datadir.Explain(err))
		}
		return nil
	}
	info, err := os.Stat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: its base directory %s is not there: mount the disk it is on, or make it", ErrImpossible, base)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrImpossible, err)
	case !info.IsDir():
		return fmt.Errorf("%w: its base directory %s is not a directory", ErrImpossible, base)
	}
	return nil
}

func deviceOf(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return uint64(stat.Dev), nil
}

// bytes is a size in messages.
func bytes(size int64) string {
	switch {
	case size >= 10<<30:
		return fmt.Sprintf("%d GiB", size>>30)
	case size >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(size*10>>30)/10) // never more than it is
	default:
		return fmt.Sprintf("%d MiB", size>>20)
	}
}
