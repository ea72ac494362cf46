package volume

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Spec is what a volume is asked to be.
type Spec struct {
	// Base is the folder it is to be in, the default one if empty.
	Base string
	// Size is in bytes; Limit, if it is not 0, is what must not be exceeded.
	Size, Limit int64
	// FSType is ext4 or xfs; empty leaves it to the node.
	FSType string
	// Block, Shared: see Volume.
	Block, Shared bool
	// Unlimited asks for a directory whose size nothing enforces.
	Unlimited bool
	// Source is the volume or snapshot that it is a copy of, if any.
	Source string
}

// fits tells whether a volume that is there is what spec asks for.
func (spec *Spec) fits(v *Volume) error {
	differs := func(what string) error { return fmt.Errorf("%s, in its %s: %w", v.Name, what, ErrExists) }
	switch {
	case v.Snapshot:
		return differs("being a snapshot")
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

// plan says how a volume will be kept.
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
		// What is in a quota and in a directory is the same.
		if (source.Kind == Image) != (v.Kind == Image) || source.Block != v.Block || source.FSType != v.FSType {
			return nil, fmt.Errorf("%w: %s is %s, and would become %s: use a storage class of the same kind", ErrImpossible, source.Name, source.describe(), v.describe())
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

// size rounds up what is asked for.
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
		return 0, fmt.Errorf("%w: it would be %s, and the limit is %s", ErrSize, bytes(wanted), bytes(spec.Limit))
	case source != nil && wanted < source.Size:
		return 0, fmt.Errorf("%w: %s is of %s, and a copy cannot be smaller", ErrSize, source.Name, bytes(source.Size))
	}
	return wanted, nil
}

// roundUp makes a size a multiple of sizeStep.
func roundUp(size int64) (int64, error) {
	if size > math.MaxInt64-sizeStep {
		return 0, fmt.Errorf("%w: %d bytes", ErrSize, size)
	}
	return (size + sizeStep - 1) &^ (sizeStep - 1), nil
}

// kindFor chooses how a volume is kept: by a project quota if the disk has them on,
// which costs nothing, else as an image. Neither is refused, and the user told how
// to go on.
func kindFor(spec *Spec, source *Volume) (Kind, error) {
	if spec.Unlimited {
		if spec.Block {
			return "", fmt.Errorf("%w: a raw block volume has a size, which needs a storage class without \"enforce: none\"", ErrImpossible)
		}
		return Directory, nil
	}
	// What was copied from an image stays one.
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
		return "", fmt.Errorf("%w: the size of a volume in %s cannot be enforced, since its file system has no project quotas on, and images cannot be used: %w. The storage class local-unlimited goes without", ErrImpossible, spec.Base, err)
	}
	return Image, nil
}

// fsTypeOf is the file system of a folder, if it is one that can have project quotas.
func fsTypeOf(path string) string {
	var stat unix.Statfs_t
	if unix.Statfs(path, &stat) != nil {
		return ""
	}
	return map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs"}[int64(stat.Type)]
}
