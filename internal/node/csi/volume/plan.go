package volume

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Spec describes the volume that a caller asks for.
type Spec struct {
	// Base is the folder for the volume's own folder. Empty means the default one.
	Base string
	// Size is the smallest allowed size in bytes, Limit the largest. 0 means none was given.
	Size, Limit int64
	// FSType is ext4 or xfs. Empty lets the node choose.
	FSType string
	// Block and Shared have the same meaning as in Volume.
	Block, Shared bool
	// Unlimited asks for a directory without a limit of its size.
	Unlimited bool
	// Source is the volume or snapshot to copy, or empty.
	Source string
}

// fits returns ErrExists unless the existing volume v is what spec asks for.
func (spec *Spec) fits(v *Volume) error {
	differs := func(what string) error { return fmt.Errorf("%s differs in its %s: %w", v.Name, what, ErrExists) }
	switch {
	case v.Snapshot:
		return differs("kind (a snapshot)")
	case v.Base != spec.Base:
		return differs("base directory")
	case v.Source != spec.Source:
		return differs("source")
	case v.Block != spec.Block || v.Shared != spec.Shared || (v.Kind == Directory) != spec.Unlimited:
		return differs("parameters")
	case v.Kind == Image && !v.Block && spec.FSType != "" && v.FSType != spec.FSType:
		return differs("file system")
	case v.Size < spec.Size || spec.Limit != 0 && v.Size > spec.Limit:
		return differs("size")
	}
	return nil
}

// plan returns the record of a new volume, which says how the volume is kept.
func (s *Store) plan(spec Spec, source *Volume) (*Volume, error) {
	if err := s.checkBase(spec.Base); err != nil {
		return nil, err
	}
	v := &Volume{Base: spec.Base, FSType: spec.FSType, Block: spec.Block, Shared: spec.Shared}
	var err error
	if v.Kind, err = kindFor(&spec, source); err != nil {
		return nil, err
	}
	if v.Kind != Image || v.Block {
		v.FSType = ""
	} else if v.FSType == "" {
		v.FSType = "ext4"
	}
	if source != nil {
		if source.Kind == Image && spec.FSType == "" {
			v.FSType = source.FSType
		}
		// Quota and Directory have the same contents, so one can be copied to the other.
		if (source.Kind == Image) != (v.Kind == Image) || source.Block != v.Block || source.FSType != v.FSType {
			return nil, fmt.Errorf("%w: %s is %s, and its copy would be %s: use a storage class of the same kind", ErrImpossible, source.Name, source.describe(), v.describe())
		}
	}
	v.Size, err = size(&spec, v, source)
	return v, err
}

func (v *Volume) describe() string {
	switch {
	case v.Block:
		return "a raw block device"
	case v.Kind == Image:
		return "an image with " + v.FSType
	}
	return "a directory"
}

// size returns the size of a new volume in bytes, rounded up. It returns ErrSize if it exceeds the
// limit.
func size(spec *Spec, v, source *Volume) (int64, error) {
	wanted := spec.Size
	if wanted == 0 {
		wanted = DefaultSize
		if spec.Limit != 0 {
			wanted = min(wanted, spec.Limit&^(sizeStep-1))
		}
		if source != nil {
			wanted = source.Size
		}
	}
	smallest := int64(MinSize)
	if v.FSType == "xfs" {
		smallest = MinXFS
	}
	if wanted < 0 {
		return 0, fmt.Errorf("%w: %d bytes", ErrSize, wanted)
	}
	wanted, err := roundUp(max(wanted, smallest))
	switch {
	case err != nil:
		return 0, err
	case spec.Limit != 0 && wanted > spec.Limit:
		return 0, fmt.Errorf("%w: the volume would have %s, and the limit is %s", ErrSize, bytes(wanted), bytes(spec.Limit))
	case source != nil && wanted < source.Size:
		return 0, fmt.Errorf("%w: %s has %s, and a copy cannot be smaller", ErrSize, source.Name, bytes(source.Size))
	}
	return wanted, nil
}

// roundUp rounds a size up to a multiple of sizeStep.
func roundUp(size int64) (int64, error) {
	if size > math.MaxInt64-sizeStep {
		return 0, fmt.Errorf("%w: %d bytes", ErrSize, size)
	}
	return (size + sizeStep - 1) &^ (sizeStep - 1), nil
}

// kindFor chooses how a volume is kept: by a project quota if the disk has project quotas on, which
// costs nothing, else as an image. If neither is possible, the error tells the user how to go on.
func kindFor(spec *Spec, source *Volume) (Kind, error) {
	if spec.Unlimited {
		if spec.Block {
			return "", fmt.Errorf("%w: a raw block volume always has a size: use a storage class without \"enforce: none\"", ErrImpossible)
		}
		return Directory, nil
	}
	// A copy of an image must be an image.
	quotas := !spec.Block && (source == nil || source.Kind != Image) && (spec.FSType == "" || spec.FSType == fsTypeOf(spec.Base))
	if quotas && enforcesProjects(spec.Base) {
		return Quota, nil
	}
	err := checkLoop()
	if err == nil && !spec.Block {
		name := "mkfs.ext4"
		if spec.FSType == "xfs" {
			name = "mkfs.xfs"
		}
		_, err = program(name)
	}
	if err != nil {
		return "", fmt.Errorf("%w: the size of a volume in %s cannot be enforced, because its file system has no project quotas turned on and images cannot be used: %w. Or use the storage class local-unlimited, which enforces no size", ErrImpossible, spec.Base, err)
	}
	return Image, nil
}

// fsTypeOf returns the file system of a folder if it can have project quotas, and "" otherwise.
func fsTypeOf(path string) string {
	var stat unix.Statfs_t
	if unix.Statfs(path, &stat) != nil {
		return ""
	}
	return map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs"}[int64(stat.Type)]
}
