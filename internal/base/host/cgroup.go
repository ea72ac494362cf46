package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DelegateCgroups makes cgroups of version 2 usable if this process is in a container without systemd, as
// the component of New does, or in a user namespace with a cgroup of its own. The processes of the container move to
// another cgroup.
func DelegateCgroups() error {
	facts, err := Detect()
	if err != nil || facts.CgroupVersion != 2 || facts.Systemd && !facts.UserNamespace {
		return err
	}
	if err := facts.checkControllers(); err != nil {
		return err
	}
	_, err = delegate("/sys/fs/cgroup")
	return err
}

// delegate makes a cgroup v2 hierarchy usable inside a container. There the
// root that is seen is an inner cgroup, and one that holds processes cannot
// give controllers to its children (cgroups(7), "no internal processes"): so
// they are moved to a child, and the controllers enabled. It does nothing at
// the real root, which may hold processes, and where the controllers are
// enabled already.
func delegate(root string) (moved bool, err error) {
	// Only cgroups other than the real root have a type.
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	wanted, err := readWords(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return false, err
	}
	enabled, err := readWords(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return false, err
	}
	wanted = slices.DeleteFunc(wanted, func(c string) bool { return slices.Contains(enabled, c) })
	if len(wanted) == 0 {
		return false, nil
	}

	// The name is the one that k3s, kind and Docker's own images use.
	child := filepath.Join(root, "init")
	if err := os.MkdirAll(child, 0o755); err != nil {
		return false, fmt.Errorf("make cgroup for the processes of this container: %w", err)
	}
	// A process that forks meanwhile leaves a new one behind: look again.
	for range 5 {
		pids, err := readWords(filepath.Join(root, "cgroup.procs"))
		if err != nil {
			return moved, err
		}
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			err := appendTo(filepath.Join(child, "cgroup.procs"), pid)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return moved, fmt.Errorf("move process %s to its own cgroup: %w", pid, err)
			}
			moved = true
		}
	}
	for _, controller := range wanted {
		err := appendTo(filepath.Join(root, "cgroup.subtree_control"), "+"+controller)
		// Some controllers cannot be given on everywhere, like cpu while
		// real-time processes run: only the required ones matter.
		if err != nil && slices.Contains(requiredControllers[2], controller) {
			return moved, fmt.Errorf("enable cgroup controller %s for pods: %w", controller, err)
		}
	}
	return moved, nil
}

func readWords(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	return strings.Fields(string(data)), nil
}

// appendTo writes a line as cgroup files want it: in one write, without
// truncating.
func appendTo(file, word string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(word + "\n")
	return errors.Join(err, f.Close())
}
