package harness

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

const (
	stateParent   = "/var/tmp"
	statePrefix   = "kedge-test-"
	stateLockName = "lock"
)

// Network is an Ethernet with hosts, in a network namespace of its own. It is separate from the
// machine's networks and from other Networks.
type Network struct {
	t T
	// name is unique on the machine; dir is the folder of that name.
	name, dir string
	lock      *os.File
	lan       *hosts.Network
	hosts     int
	// outside is the router's address, for a network behind NAT. outermost is the network behind whose NATs this one is, or nil.
	// sites counts the networks behind the outermost one.
	outside   netip.Addr
	outermost *Network
	sites     int
}

// NewNetwork makes a network that is removed when the test ends. It also removes what killed test runs
// have left.
func NewNetwork(t T) *Network {
	t.Helper()
	removeStale(t)
	n := &Network{t: t, name: statePrefix + rand.Text()[:8]}
	n.dir = filepath.Join(stateParent, n.name)
	t.Cleanup(n.close)
	if err := n.make(); err != nil {
		t.Fatalf("make network: %v", err)
	}
	return n
}

func (n *Network) make() error {
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return err
	}
	// The lock is held before it has its name. Otherwise another test binary could take it in between, and remove the network.
	var err error
	if n.lock, err = os.Create(filepath.Join(n.dir, stateLockName+".new")); err != nil {
		return err
	}
	if err := unix.Flock(int(n.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", n.lock.Name(), err)
	}
	if err := os.Rename(n.lock.Name(), filepath.Join(n.dir, stateLockName)); err != nil {
		return err
	}
	n.lan, err = hosts.NewNetwork(hosts.Subnet{V4: "172.31.0.", V6: "fd31::"})
	return err
}

func (n *Network) close() {
	if n.lan != nil {
		n.lan.Close()
	}
	if n.lock == nil {
		// The outer network removes the rest of a network behind NAT.
		return
	}
	if err := removeState(n.name); err != nil {
		n.t.Logf("remove network: %v", err)
	}
	n.lock.Close()
}

// removeStale removes the state of networks whose test binary is dead.
func removeStale(t T) {
	folders, _ := filepath.Glob(filepath.Join(stateParent, statePrefix+"*"))
	for _, folder := range folders {
		// A network without a lock is just being made.
		lock, err := os.Open(filepath.Join(folder, stateLockName))
		if err != nil {
			continue
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if err := removeState(filepath.Base(folder)); err != nil {
				t.Logf("remove what a killed test run left: %v", err)
			}
		}
		lock.Close()
	}
}

// removeState removes the cgroups, the loop devices and the folder of the network called name. The lock
// goes last, so that an interrupted removal is repeated.
func removeState(name string) error {
	if err := hosts.RemoveCgroups(name); err != nil {
		return err
	}
	dir := filepath.Join(stateParent, name)
	if err := hosts.DetachLoops(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == stateLockName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
