package volume

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// MinSize is the smallest size of a volume in bytes. A smaller one would be mostly journal.
	MinSize = 16 << 20
	// DefaultSize is the size of a volume in bytes if the claim asks for none.
	DefaultSize = 1 << 30
	// MinXFS is the smallest file system in bytes that mkfs.xfs makes.
	MinXFS = 300 << 20

	sizeStep = 1 << 20
)

// Room returns the largest size in bytes of a new volume such as spec, whatever size spec asks for.
//
// Images are allocated completely when they are made, so the free space that df shows is really
// free. If other data could take the space of a volume, its writes would fail, and a file system
// that loses writes is damaged. Room subtracts the space that was promised and is not taken yet: the
// rest of quotas, the blocks that reflinked copies share and need for themselves when written to,
// and holes that the kernel has made in images.
func (s *Store) Room(spec Spec) (int64, error) {
	spec.Base = cmp.Or(spec.Base, s.base)
	if err := s.checkBase(spec.Base); err != nil {
		return 0, err
	}
	if _, err := kindFor(&spec, nil); err != nil {
		return 0, err
	}
	return s.room(spec.Base, "")
}

// room is Room for a base directory. It ignores what is promised to the volume named without.
func (s *Store) room(base, without string) (int64, error) {
	device, err := deviceOf(base)
	if err != nil {
		return 0, err
	}
	volumes, err := s.List()
	if err != nil {
		return 0, err // the size in a damaged record is unknown
	}
	var promised int64
	for _, v := range volumes {
		if v.Name == without {
			continue
		}
		if other, err := deviceOf(v.Base); err == nil && other == device {
			promised += v.promised()
		}
	}
	// The free space is measured after the promises. So a volume that takes its space in between is
	// counted twice, which is safe. In the other order, such a volume would not be counted at all.
	var disk unix.Statfs_t
	if err := unix.Statfs(base, &disk); err != nil {
		return 0, fmt.Errorf("measure %s: %w", base, err)
	}
	room := int64(disk.Bavail)*int64(disk.Bsize) - s.reserve(&disk, device) - promised
	return max(0, room&^(sizeStep-1)), nil
}

// reserve returns how many bytes of a file system volumes must leave free. On the file system with
// the node's own files it is enough to keep the kubelet from evicting pods, which begins at 5 %
// free and lasts until 15 % are free (node/kubelet/configuration.go). Elsewhere it is what file
// systems need for the metadata of large files.
func (s *Store) reserve(disk *unix.Statfs_t, device uint64) int64 {
	total := int64(disk.Blocks) * int64(disk.Bsize)
	if node, err := deviceOf(s.node); err == nil && node == device {
		return total / 10
	}
	return total / 100
}

// promised returns how many bytes of its disk a volume may still take.
func (v *Volume) promised() int64 {
	switch v.Kind {
	case Image:
		var stat unix.Stat_t
		_ = unix.Lstat(v.image(), &stat) // without an image the volume has taken nothing
		holes := max(0, v.Size-stat.Blocks*512)
		if v.Snapshot {
			holes = max(0, v.Needs-stat.Blocks*512)
		}
		if v.mayShare() {
			return holes + sharedBytes(v.image(), v.Size)
		}
		return holes
	case Quota:
		used, _ := quotaUsed(v.Base, v.Project)
		more := max(0, v.Size-used)
		if v.Snapshot {
			more = max(0, v.Needs-used)
		}
		if v.mayShare() {
			more += used // this includes the shared blocks
		}
		return more
	}
	return 0
}

// mayShare tells whether the volume shares blocks with its source. The record of a copy that is being
// made does not say it yet.
func (v *Volume) mayShare() bool {
	return v.Reflinked || v.State == Making && v.Source != ""
}

// sharedBytes returns how many bytes of a file are shared with other files, and at most most. It
// returns most if the file system does not tell.
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

// checkBase returns an error if a base directory is missing. It creates only the default one:
// another one is on a user's disk, which may not be mounted.
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
		return fmt.Errorf("%w: the base directory %s does not exist: mount its disk, or create the directory", ErrImpossible, base)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrImpossible, err)
	case !info.IsDir():
		return fmt.Errorf("%w: the base directory %s is not a directory", ErrImpossible, base)
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

// bytes formats a size for messages.
func bytes(size int64) string {
	switch {
	case size >= 10<<30:
		return fmt.Sprintf("%d GiB", size>>30)
	case size >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(size*10>>30)/10) // rounded down
	default:
		return fmt.Sprintf("%d MiB", size>>20)
	}
}
