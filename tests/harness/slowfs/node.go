package slowfs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// node is a file or folder. It acts like a LoopbackNode and reports operations to the disk.
type node struct {
	fs.LoopbackNode
	disk *Disk
}

// file is an open file. It hides that its descriptor could be passed to the kernel, whose writes would
// bypass the disk.
type file struct {
	opened
	fd int
}

type opened interface {
	fs.FileReleaser
	fs.FileGetattrer
	fs.FileReader
	fs.FileFlusher
	fs.FileLseeker
	fs.FileSetattrer
}

func wrap(handle fs.FileHandle) fs.FileHandle {
	fd, _ := handle.(fs.FilePassthroughFder).PassthroughFd()
	return &file{handle.(opened), fd}
}

// readable adds the right to read, which is needed to keep what is overwritten.
func readable(flags uint32) uint32 {
	if flags&unix.O_ACCMODE == unix.O_WRONLY {
		flags = flags&^unix.O_ACCMODE | unix.O_RDWR
	}
	return flags
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	handle, fuseFlags, errno := n.LoopbackNode.Open(ctx, readable(flags)&^unix.O_TRUNC)
	if errno != fs.OK {
		return nil, 0, errno
	}
	return wrap(handle), fuseFlags, fs.OK
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, handle, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, readable(flags), mode, out)
	if errno != fs.OK {
		return nil, nil, 0, errno
	}
	return inode, wrap(handle), fuseFlags, fs.OK
}

// unsynced returns the record of the node, which must be a file. fd is open on it. The caller holds the
// disk's lock.
func (n *node) unsynced(fd int) (*unsynced, error) {
	if n.disk.off {
		return nil, unix.EIO
	}
	if n.disk.refusal != 0 {
		return nil, n.disk.refusal
	}
	inode := n.StableAttr().Ino
	if u := n.disk.files[inode]; u != nil {
		return u, nil
	}
	u, err := newUnsynced(fd)
	if err == nil {
		n.disk.files[inode] = u
	}
	return u, err
}

func (n *node) Write(_ context.Context, handle fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	f, ok := handle.(*file)
	if !ok {
		return 0, unix.EBADF
	}
	n.disk.await()
	n.disk.mutex.Lock()
	defer n.disk.mutex.Unlock()
	u, err := n.unsynced(f.fd)
	if err == nil {
		err = u.keep(offset, int64(len(data)))
	}
	if err != nil {
		return 0, fs.ToErrno(err)
	}
	written, err := unix.Pwrite(f.fd, data, offset)
	return uint32(max(0, written)), fs.ToErrno(err)
}

func (n *node) Setattr(ctx context.Context, handle fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.await()
	n.disk.mutex.Lock()
	defer n.disk.mutex.Unlock()
	if size, ok := in.GetSize(); ok {
		if err := n.truncate(handle, int64(size)); err != nil {
			return fs.ToErrno(err)
		}
	}
	return n.LoopbackNode.Setattr(ctx, handle, in, out)
}

func (n *node) truncate(handle fs.FileHandle, size int64) error {
	f, ok := handle.(*file)
	if !ok {
		h, _, errno := n.LoopbackNode.Open(context.Background(), unix.O_RDWR)
		if errno != fs.OK {
			return errno
		}
		f = wrap(h).(*file)
		defer f.Release(context.Background())
	}
	u, err := n.unsynced(f.fd)
	if err != nil {
		return err
	}
	return u.truncate(size)
}

// Allocate is refused, so that programs write zeros instead.
func (n *node) Allocate(context.Context, fs.FileHandle, uint64, uint64, uint32) syscall.Errno {
	return unix.EOPNOTSUPP
}

// CopyFileRange is refused, so that programs read and write instead.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, unix.EOPNOTSUPP
}

func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.disk.await()
	return fs.ToErrno(n.disk.sync(n.StableAttr().Ino))
}
