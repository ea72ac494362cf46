package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// diskSize is the size of a sparse file, in bytes.
const diskSize = 8 << 30

// Disk is a file system on a loop device for one host. It holds everything that the host writes, except
// to tmpfs.
type Disk struct {
	host *Host
	// name is the name of the loop device.
	name string
}

// NewHostOnDisk adds a host that has a disk of its own with ext4.
func (n *Network) NewHostOnDisk(t T, name string) (*Host, *Disk) {
	t.Helper()
	device, err := newLoop(filepath.Join(n.dir, name+".ext4"))
	if err != nil {
		t.Fatalf("make a disk for host %s: %v", name, err)
	}
	// The host's mount keeps the device attached. The kernel detaches it with the mount.
	defer device.Close()
	h := n.newHost(t, name, device.Name(), "")
	return h, &Disk{h, filepath.Base(device.Name())}
}

// newLoop makes a file system in a file and returns its loop device.
func newLoop(path string) (*os.File, error) {
	backing, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	if err := backing.Truncate(diskSize); err != nil {
		return nil, err
	}
	// ext4 must initialize everything now: what it does later would be measured.
	mkfs := exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-N", "65536", path)
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if output, err := mkfs.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4, of the package e2fsprogs: %w: %s", err, output)
	}
	return attach(backing, unix.LO_FLAGS_AUTOCLEAR)
}

// Written syncs the disk and returns the bytes written to it since it was made.
func (d *Disk) Written() (float64, error) {
	folder, err := os.Open(d.host.Path(diskFolders[0]))
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return 0, fmt.Errorf("sync disk: %w", err)
	}
	text, err := os.ReadFile(filepath.Join("/sys/block", d.name, "stat"))
	if err != nil {
		return 0, err
	}
	// See Documentation/block/stat.rst: the seventh field is the number of sectors written. A sector
	// has 512 bytes here, whatever the disk's sector size.
	fields := strings.Fields(string(text))
	if len(fields) < 7 {
		return 0, fmt.Errorf("read statistics of %s: too short", d.name)
	}
	sectors, err := strconv.ParseFloat(fields[6], 64)
	return sectors * 512, err
}

// Used returns the bytes that are in use on the disk.
func (d *Disk) Used() (float64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.host.Path(diskFolders[0]), &s); err != nil {
		return 0, fmt.Errorf("read disk usage: %w", err)
	}
	return float64(s.Blocks-s.Bfree) * float64(s.Bsize), nil
}

// NewHostFrom adds a host whose files are those of a folder with a whole system. The host does not
// write to the folder. Programs that the host runs must be in it.
func (n *Network) NewHostFrom(t T, name, root string) *Host {
	t.Helper()
	return n.newHost(t, name, "", root)
}
