// Package volume keeps the volumes and snapshots of a node on its disks, each
// with a size that is enforced. The package csi calls it for the kubelet and the
// provisioner.
//
// A volume is a folder BASE/NAME for root alone, in which is either `image`, a
// file system in a file that is mounted over a loop device, or `data`, a plain
// directory, with or without a project quota. What is known of it is in a record
// below the default storage directory, which is written before anything is made
// and removed after everything is gone: whatever a kill -9 leaves is found by it.
// What is attached and mounted is asked of the kernel, never remembered.
package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"k8s.io/mount-utils"
)

// Faults that callers tell apart.
var (
	ErrName       = errors.New("the name cannot be that of a volume")
	ErrNotFound   = errors.New("there is no such volume on this node")
	ErrExists     = errors.New("there is one of that name already, and it is different")
	ErrBusy       = errors.New("something else is being done to the volume: it will be tried again")
	ErrInUse      = errors.New("the volume is in use")
	ErrNotStaged  = errors.New("the volume is not mounted on this node yet")
	ErrMissing    = errors.New("the volume's files are not there")
	ErrNoSpace    = errors.New("there is not enough room")
	ErrSize       = errors.New("the size cannot be")
	ErrImpossible = errors.New("this node cannot make such a volume")
)

// Store is the volumes of a node.
type Store struct {
	base string
	// node is where the node's own files are, whose file system must not be filled.
	node    string
	mounter mount.Interface

	// placing is held from asking for room until the record that takes it is there.
	placing sync.Mutex
	locks   locks
	// onStep is called between the steps of what is done; tests kill the process.
	onStep func(step string)
}

// NewStore returns the store whose records, and volumes unless they are asked for
// elsewhere, are in base. node is the folder of the kubelet.
func NewStore(base, node string) *Store {
	return &Store{
		base: base,
		node: node,
		// Without systemd's scopes, which are for the daemons of FUSE and NFS.
		mounter: mount.NewWithoutSystemd(""),
		locks:   locks{held: map[string]int{}},
		onStep:  func(string) {},
	}
}

// maxName keeps the names of all files that are made for a volume valid ones.
const maxName = 128

// CheckName returns ErrName unless name is one component of a path, of letters,
// digits, dots and hyphens, and not hidden. Provisioners make pvc-UID and
// snapshot-UID.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: %d bytes long, not 1 to %d", ErrName, len(name), maxName)
	}
	for i, r := range []byte(name) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || r != '.' && r != '-') {
			return fmt.Errorf("%w: %q has %q in it", ErrName, name, r)
		}
	}
	return nil
}

// path is the folder of a volume, and of what is in it.
func (v *Volume) path(parts ...string) string {
	return filepath.Join(append([]string{v.Base, v.Name}, parts...)...)
}

func (v *Volume) image() string { return v.path("image") }
func (v *Volume) data() string  { return v.path("data") }

// locks lets one change a volume at a time, or several copy it. Nobody waits: who
// calls tries again.
type locks struct {
	mutex sync.Mutex
	// held is the number of readers, -1 for a writer.
	held map[string]int
}

func (l *locks) write(name string) (unlock func(), err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.held[name] != 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrBusy)
	}
	l.held[name] = -1
	return func() { l.release(name, 1) }, nil
}

func (l *locks) read(name string) (unlock func(), err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.held[name] < 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrBusy)
	}
	l.held[name]++
	return func() { l.release(name, -1) }, nil
}

func (l *locks) release(name string, by int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.held[name] += by; l.held[name] == 0 {
		delete(l.held, name)
	}
}
