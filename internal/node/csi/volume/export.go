package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// An export of a volume is a tar archive with the files that pods see. That of a raw block volume has one file, blockEntry.
const blockEntry = "block"

// dataEntry is the folder in the file system of an image that pods see.
const dataEntry = "data"

// Content describes a volume whose data are elsewhere, so that a node can make it anew.
type Content struct {
	// Base, FSType, Block, Shared and Size have the same meaning as in Volume.
	Base   string `json:"base,omitempty"`
	FSType string `json:"fsType,omitempty"`
	Block  bool   `json:"block,omitempty"`
	Shared bool   `json:"shared,omitempty"`
	Size   int64  `json:"size"`
	// Unlimited is true for a directory whose size nothing enforces.
	Unlimited bool `json:"unlimited,omitempty"`
}

// Describe describes a volume.
func (s *Store) Describe(name string) (Content, error) {
	v, err := s.Get(name)
	if err != nil {
		return Content{}, err
	}
	c := Content{Base: v.Base, FSType: v.FSType, Block: v.Block, Shared: v.Shared, Size: v.Size, Unlimited: v.Kind == Directory}
	if c.Base == s.base {
		c.Base = ""
	}
	return c, nil
}

// Export writes the contents of a volume to w, as of one moment: of an image it makes a frozen copy first. A directory cannot be
// frozen. Its files are read while pods may change them. around calls the function that makes the copy, or reads the directory.
func (s *Store) Export(ctx context.Context, name string, w io.Writer, around func(do func() error) error) error {
	v, err := s.Get(name)
	if err != nil {
		return err
	}
	if v.Snapshot {
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if v.Kind == Image {
		return s.withCopy(ctx, v, around, func(c *Volume) error { return c.exportImage(ctx, w) })
	}
	data, err := os.Open(v.data())
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer data.Close()
	return around(func() error { return exportFolder(ctx, data, w) })
}

// copyPrefix begins the names of copies that exist while a volume is exported.
const copyPrefix = "export-of-"

// withCopy calls use with a copy of an image, and removes the copy. Its record is that of an unfinished volume, so that Recover removes what a crash leaves.
func (s *Store) withCopy(ctx context.Context, source *Volume, around func(func() error) error, use func(*Volume) error) (err error) {
	c := source.snapshot()
	c.Name, c.Source, c.State, c.Created = copyPrefix+source.Name, source.Name, Making, time.Now().UTC()
	unlock, err := s.locks.write(c.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if before, err := s.load(c.Name); err == nil {
		err = s.discard(ctx, before)
		if err != nil {
			return err
		}
	}
	if err := around(func() error { return s.makeCopy(ctx, c, source) }); err != nil {
		return errors.Join(err, s.discard(context.WithoutCancel(ctx), c))
	}
	defer func() { err = errors.Join(err, s.discard(context.WithoutCancel(ctx), c)) }()
	return use(c)
}

// makeCopy makes a copy. Meanwhile nobody may change the source.
func (s *Store) makeCopy(ctx context.Context, c, source *Volume) error {
	release, err := s.locks.read(source.Name)
	if err != nil {
		return err
	}
	defer release()
	if err := s.place(c, source); err != nil {
		return err
	}
	return s.make(ctx, c, source)
}

// exportImage writes what an image has, which nothing uses.
func (v *Volume) exportImage(ctx context.Context, w io.Writer) error {
	if v.Block {
		return v.exportBlock(ctx, w)
	}
	top, err := v.openFS(unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer top.Close()
	data, err := openBeneath(top, dataEntry, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, os.ErrNotExist) { // no pod has used the volume yet
		return tar.NewWriter(w).Close()
	}
	if err != nil {
		return err
	}
	defer data.Close()
	return exportFolder(ctx, data, w)
}

func exportFolder(ctx context.Context, folder *os.File, w io.Writer) error {
	archive := tar.NewWriter(w)
	if err := archiveTree(ctx, folder, archive); err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	return archive.Close()
}

func (v *Volume) exportBlock(ctx context.Context, w io.Writer) error {
	image, err := os.Open(v.image())
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer image.Close()
	out := tar.NewWriter(w)
	a := archive{ctx, out, nil}
	if err := a.file(image, blockEntry); err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	return out.Close()
}

// openFS opens the top folder of an image's file system. The kernel unmounts it when the file is closed, also if kedge is killed: it
// is mounted nowhere.
func (v *Volume) openFS(attributes int) (*os.File, error) {
	dev, err := attach(v.image(), true)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	context, err := unix.Fsopen(v.FSType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open file system %s: %w", v.FSType, err)
	}
	defer unix.Close(context)
	err = unix.FsconfigSetString(context, "source", dev.Name())
	if err == nil && attributes&unix.MOUNT_ATTR_RDONLY != 0 {
		err = unix.FsconfigSetFlag(context, "ro")
	}
	if err == nil && v.FSType == "xfs" { // a copy has the UUID of its source
		err = unix.FsconfigSetFlag(context, "nouuid")
	}
	if err == nil {
		err = unix.FsconfigCreate(context)
	}
	if err != nil {
		return nil, fmt.Errorf("open file system of %s: %w", v.Name, err)
	}
	mounted, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount file system of %s: %w", v.Name, err)
	}
	defer unix.Close(mounted)
	top, err := unix.Openat(mounted, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open file system of %s: %w", v.Name, err)
	}
	return os.NewFile(uintptr(top), v.path()), nil
}

// Import makes a volume of an export. If a volume of this name exists, Import returns it and reads nothing.
func (s *Store) Import(ctx context.Context, name string, content Content, r io.Reader) (*Volume, error) {
	spec := Spec{Base: content.Base, Size: content.Size, FSType: content.FSType, Block: content.Block, Shared: content.Shared, Unlimited: content.Unlimited}
	if spec.Base == "" || s.checkBase(spec.Base) != nil {
		spec.Base = s.base // the disk of the other folder is not there
	}
	return s.create(ctx, name, "", func(*Volume) (*Volume, error) { return s.plan(spec, nil) }, func(*Volume) error { return nil },
		func(v *Volume) error { return v.fill(ctx, r) })
}

// fill puts an export into a new volume.
func (v *Volume) fill(ctx context.Context, r io.Reader) error {
	archive := tar.NewReader(r)
	if v.Block {
		return v.fillBlock(ctx, archive)
	}
	folder := v.path()
	var top *os.File
	var err error
	if v.Kind == Image {
		top, err = v.openFS(0)
	} else {
		top, err = os.Open(folder)
	}
	if err != nil {
		return err
	}
	defer top.Close()
	if err := unix.Mkdirat(int(top.Fd()), dataEntry, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory: %w", err)
	}
	data, err := openBeneath(top, dataEntry, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := data.Chmod(0o777); err != nil { // as makeData makes it
		return fmt.Errorf("make directory: %w", err)
	}
	if err := extractTree(ctx, data, archive); err != nil {
		return err
	}
	if err := unix.Syncfs(int(data.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", v.Name, datadir.Explain(err))
	}
	return nil
}

func (v *Volume) fillBlock(ctx context.Context, archive *tar.Reader) error {
	header, err := archive.Next()
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	if header.Name != blockEntry || header.Size > v.Size {
		return errArchive
	}
	image, err := os.OpenFile(v.image(), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer image.Close()
	if err := writeZeroed(image, &contextReader{ctx, archive}, header.Size); err != nil {
		return err
	}
	return noSpace(image.Sync())
}
