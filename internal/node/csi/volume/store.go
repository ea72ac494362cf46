// Package volume keeps the volumes and snapshots of a node on its disks, and enforces their sizes. The
// package csi calls it for the kubelet and the provisioner.
//
// A volume is a folder BASE/NAME that only root can enter. In it is either `image`, a file with a file
// system, which is mounted over a loop device, or `data`, a plain directory with or without a
// project quota. Each volume has a record below the default storage directory. The record is
// written before anything is made and removed after everything is gone, so that everything that a
// killed kedge leaves is found. The package asks the kernel what is attached and mounted, and never
// remembers it.
package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"k8s.io/mount-utils"
)

// The errors that callers distinguish.
var (
	ErrName       = errors.New("invalid name of a volume")
	ErrNotFound   = errors.New("there is no such volume on this node")
	ErrExists     = errors.New("a different one already exists")
	ErrBusy       = errors.New("another operation on the volume is running: this one will be tried again")
	ErrInUse      = errors.New("the volume is in use")
	ErrNotStaged  = errors.New("the volume is not mounted on this node yet")
	ErrMissing    = errors.New("the volume's files are missing")
	ErrNoSpace    = errors.New("there is not enough space")
	ErrSize       = errors.New("invalid size of the volume")
	ErrImpossible = errors.New("this node cannot make such a volume")
)

// Store manages the volumes of a node.
type Store struct {
	base string
	// node is a folder on the file system of the node's own files, which must not be filled.
	node    string
	mounter mount.Interface

	// placing is held from the check for space until the record that takes the space is saved.
	placing sync.Mutex
	locks   locks
	// onStep is called between the steps of an operation, so that tests can kill the process there.
	onStep func(step string)
}

// NewStore returns a store whose records are in base. So are volumes for which no other folder is
// asked for. node is the kubelet's folder.
func NewStore(base, node string) *Store {
	return &Store{
		base: base,
		node: node,
		// systemd's scopes are left out: they are for the daemons of FUSE and NFS.
		mounter: mount.NewWithoutSystemd(""),
		locks:   locks{held: map[string]int{}},
		onStep:  func(string) {},
	}
}

// maxName keeps the names of all files that are made for a volume within the limits of file systems.
const maxName = 128

// CheckName returns ErrName unless name is a valid name of a volume: one path component of letters,
// digits, dots and hyphens that begins with a letter or digit. Provisioners use pvc-UID and
// snapshot-UID.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: it has %d bytes, not 1 to %d", ErrName, len(name), maxName)
	}
	for i, r := range []byte(name) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || r != '.' && r != '-') {
			return fmt.Errorf("%w: %q must not contain %q", ErrName, name, r)
		}
	}
	return nil
}

// path returns the path of a volume's folder, or of parts in it.
func (v *Volume) path(parts ...string) string {
	return filepath.Join(append([]string{v.Base, v.Name}, parts...)...)
}

func (v *Volume) image() string { return v.path("image") }
func (v *Volume) data() string  { return v.path("data") }

// locks allows one change of a volume at a time, or several copies of it. Nobody waits: the caller
// tries again.
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
