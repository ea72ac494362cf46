// Package slowfs is a disk for a host of tests/harness that is as slow as an SD card. On command it
// forgets what was not synced, as after a power cut, is full, or does not answer. It is a FUSE file
// system over a folder of the machine. Tests below tests/ call it.
//
// Contents and lengths of files are durable when fsync has returned, or when the disk has written them
// back by itself some seconds later. Names (create, rename, unlink) are durable at once, unlike on a
// real disk.
package slowfs

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
)

// writeBack is how long unsynced data stay unwritten. It is ext4's commit interval.
const writeBack = 5 * time.Second

// Limits are the disk's limits. Zero means no limit.
type Limits struct {
	// BytesPerSecond is the speed of writing synced data, in pages of 4 KiB.
	BytesPerSecond float64
	// SyncsPerSecond is the highest rate of syncs of files or folders.
	SyncsPerSecond float64
}

// SDCard has the limits of a cheap SD card.
var SDCard = Limits{BytesPerSecond: 1e6, SyncsPerSecond: 20}

// Disk is a mounted slow disk.
type Disk struct {
	path string

	mutex sync.Mutex
	// limits may change. free is when the disk has done all its work.
	limits Limits
	free   time.Time
	// off is true while the power is cut.
	off bool
	// refusal is the error of all writes, if it is not zero.
	refusal unix.Errno
	// stalled is closed when the disk answers again. It is nil while the disk answers.
	stalled chan struct{}
	files   map[uint64]*unsynced
	stats   Stats
}

// Stats counts what a disk has done.
type Stats struct {
	Syncs, Bytes int64
	// Waited is the total time of all syncs.
	Waited time.Duration
}

// Mount mounts a new, empty disk on a folder of a host, and creates that folder. The disk
// disappears with the host.
func Mount(t harness.T, h *harness.Host, target string, limits Limits) *Disk {
	t.Helper()
	mount := func(options string) error { return h.Mount("slowfs", target, "fuse", options) }
	return start(t, h.Scratch("slowfs"), h.Path(target), limits, mount)
}

// MountHere mounts a new, empty disk on a folder of the calling process, and creates that folder. The
// process needs a mount namespace of its own.
func MountHere(t harness.T, target string, limits Limits) *Disk {
	t.Helper()
	data, err := os.MkdirTemp("", "slowfs")
	if err != nil {
		t.Fatalf("make folder of slow disk: %v", err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(target, unix.MNT_DETACH)
		os.RemoveAll(data)
	})
	mount := func(options string) error { return unix.Mount("slowfs", target, "fuse", 0, options) }
	return start(t, data, target, limits, mount)
}

// start makes a disk that keeps its data in one folder and is mounted on another.
func start(t harness.T, data, target string, limits Limits, mount func(options string) error) *Disk {
	t.Helper()
	d := &Disk{path: data, limits: limits, files: map[uint64]*unsynced{}}
	if err := d.mount(target, mount); err != nil {
		t.Fatalf("mount slow disk on %s: %v", target, err)
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		<-stopped
	})
	go func() {
		defer close(stopped)
		d.writeBack(ended)
	}()
	return d
}

func (d *Disk) mount(target string, mount func(options string) error) error {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse, which needs the kernel's module fuse: %w", err)
	}
	if err := mount(fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device)); err != nil {
		unix.Close(device)
		return err
	}
	data := &fs.LoopbackRoot{Path: d.path}
	data.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *unixStat) fs.InodeEmbedder {
		return &node{LoopbackNode: fs.LoopbackNode{RootData: data}, disk: d}
	}
	// Attributes are not cached, because Cut changes them. Files are not passed through to the kernel:
	// see file.
	options := &fs.Options{MountOptions: fuse.MountOptions{FsName: "slowfs", Name: "slowfs"}}
	root := data.NewNode(data, nil, "", nil)
	data.RootNode = root
	server, err := fuse.NewServer(fs.NewNodeFS(root, options), fmt.Sprintf("/dev/fd/%d", device), &options.MountOptions)
	if err != nil {
		return err
	}
	// The server ends with the host's mount namespace.
	go server.Serve()
	return nil
}

// SetLimits changes the disk's limits from now on.
func (d *Disk) SetLimits(limits Limits) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.limits = limits
}

// Stats returns what the disk has done until now.
func (d *Disk) Stats() Stats {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.stats
}

// Cut cuts the power: contents go back to their state at the last sync, and every operation fails until
// PowerOn is called. Kill the programs that use the disk before calling PowerOn.
func (d *Disk) Cut() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.off = true
	for inode, file := range d.files {
		if err := file.revert(); err != nil {
			return fmt.Errorf("forget what was not synced: %w", err)
		}
		file.close()
		delete(d.files, inode)
	}
	return nil
}

// PowerOn ends the power cut that Cut began.
func (d *Disk) PowerOn() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.off = false
}

// Refuse makes every write fail with a cause such as ENOSPC or EROFS, until it is called with zero.
func (d *Disk) Refuse(cause unix.Errno) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.refusal = cause
}

// Stall makes every write and sync wait until Resume is called. Waiting processes cannot be killed, so
// their host cannot end before Resume.
func (d *Disk) Stall() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.stalled == nil {
		d.stalled = make(chan struct{})
	}
}

// Resume ends what Stall began.
func (d *Disk) Resume() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.stalled != nil {
		close(d.stalled)
		d.stalled = nil
	}
}

// await waits while the disk is stalled.
func (d *Disk) await() {
	d.mutex.Lock()
	stalled := d.stalled
	d.mutex.Unlock()
	if stalled != nil {
		<-stalled
	}
}

// writeBack syncs files that programs do not sync, until ended is closed.
func (d *Disk) writeBack(ended <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			d.mutex.Lock()
			defer d.mutex.Unlock()
			for _, file := range d.files {
				file.close()
			}
			clear(d.files)
			return
		case <-ticker.C:
		}
		d.mutex.Lock()
		var old []uint64
		for inode, file := range d.files {
			if time.Since(file.since) > writeBack {
				old = append(old, inode)
			}
		}
		d.mutex.Unlock()
		for _, inode := range old {
			_ = d.sync(inode)
		}
	}
}

// sync makes a file durable, and takes as long as the disk would.
func (d *Disk) sync(inode uint64) error {
	d.mutex.Lock()
	file := d.files[inode]
	var bytes int64
	if file != nil {
		bytes = file.flush()
	}
	took := d.reserve(bytes)
	d.mutex.Unlock()

	time.Sleep(took)

	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.off {
		return unix.EIO
	}
	d.stats.Syncs++
	d.stats.Bytes += bytes
	d.stats.Waited += took
	if file != nil && file.flushed() {
		file.close()
		if d.files[inode] == file {
			delete(d.files, inode)
		}
	}
	return nil
}

// reserve queues a write of some bytes and returns the time at which it is done.
func (d *Disk) reserve(bytes int64) time.Duration {
	var cost float64
	if d.limits.BytesPerSecond > 0 {
		cost += float64(bytes) / d.limits.BytesPerSecond
	}
	if d.limits.SyncsPerSecond > 0 {
		cost += 1 / d.limits.SyncsPerSecond
	}
	now := time.Now()
	if d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(time.Duration(cost * float64(time.Second)))
	return d.free.Sub(now)
}
