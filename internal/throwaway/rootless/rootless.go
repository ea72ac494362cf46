// Package rootless gives an ordinary user what the nodes of a throw-away cluster need, and what root has: user IDs for
// the users of containers, and a cgroup to divide. `kedge run` calls Prepare, and the keeper of the cluster runs in a
// user namespace. kedge has no rights of its own for this: newuidmap and newgidmap give the IDs, and the systemd of
// the user gives the cgroup.
package rootless

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	ids "github.com/moby/sys/user"
	"golang.org/x/sys/unix"
)

// leastIDs is how many IDs a container has: 0 to 65535 are what images use.
const leastIDs = 65536

// Prepare makes sure that this user can have nodes. If this process has to be in another cgroup, Prepare starts it again
// there, and does not return. Otherwise it does nothing, or says what is missing.
func Prepare() error {
	if err := prepare(); err != nil {
		return fmt.Errorf("%w. Or run the command as root", err)
	}
	return nil
}

func prepare() error {
	for _, program := range []string{newuidmap, newgidmap} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("an ordinary user needs %s to make nodes: install it (package uidmap of Debian and Ubuntu, shadow-utils of Fedora)", program)
		}
	}
	if _, err := mappings(); err != nil {
		return err
	}
	if err := checkModule("/"); err != nil {
		return err
	}
	return enterCgroup()
}

// checkModule returns an error if the kernel below root lacks what only root can load. The kernel loads its other parts
// when a node asks for them.
func checkModule(root string) error {
	if _, err := os.Stat(filepath.Join(root, "proc/sys/net/bridge")); err != nil {
		return errors.New("the kernel module br_netfilter is not loaded, so pods would not reach Services, and only root can load it: run `sudo modprobe br_netfilter` (for all boots: `echo br_netfilter | sudo tee /etc/modules-load.d/br_netfilter.conf`)")
	}
	return nil
}

// The programs of shadow that may give a user the IDs that belong to the user.
const (
	newuidmap = "newuidmap"
	newgidmap = "newgidmap"
)

// mapping is the mapping of the IDs of a user namespace for newuidmap or newgidmap.
type mapping struct {
	program string
	// arguments have groups of three: the first ID in the namespace, the first one outside, and how many.
	arguments []string
}

// mappings returns what the user namespace of a keeper has. Its root is this user.
func mappings() ([]mapping, error) {
	account, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("find out who runs the command: %w", err)
	}
	var all []mapping
	for _, kind := range []struct {
		program, file string
		own           int
	}{{newuidmap, "/etc/subuid", os.Geteuid()}, {newgidmap, "/etc/subgid", os.Getegid()}} {
		ranges, err := ids.ParseSubIDFileFilter(kind.file, func(r ids.SubID) bool { return r.Name == account.Username || r.Name == account.Uid })
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read %s: %w", kind.file, err)
		}
		arguments, count := arguments(kind.own, ranges)
		if count < leastIDs {
			return nil, fmt.Errorf("%s gives the user %s %d IDs for the users of containers, and %d are needed: run `sudo usermod --add-subuids 524288-589823 --add-subgids 524288-589823 %s`, with a range that nobody else has",
				kind.file, account.Username, count, leastIDs, account.Username)
		}
		all = append(all, mapping{kind.program, arguments})
	}
	return all, nil
}

// arguments returns the arguments of a mapping, and how many IDs it has besides own.
func arguments(own int, ranges []ids.SubID) (arguments []string, count int64) {
	add := func(inside, outside, count int64) {
		for _, number := range []int64{inside, outside, count} {
			arguments = append(arguments, strconv.FormatInt(number, 10))
		}
	}
	add(0, int64(own), 1)
	for _, r := range ranges {
		add(count+1, r.SubID, r.Count)
		count += r.Count
	}
	return arguments, count
}

// Command returns a command that runs a program as the root of a user namespace, with mounts and cgroups of its own. The
// program runs as soon as GiveIDs was called and a line was written to its standard input. A program that starts before
// it has its IDs gets no rights, so a shell waits for them.
func Command(program string, arguments ...string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", `read -r line && exec "$@"`, "sh", program}, arguments...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP}
	return cmd
}

// GiveIDs gives a process of Command its user IDs and group IDs.
func GiveIDs(pid int) error {
	all, err := mappings()
	if err != nil {
		return err
	}
	for _, m := range all {
		output, err := exec.Command(m.program, append([]string{strconv.Itoa(pid)}, m.arguments...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("give the cluster its IDs: %s %s: %w: %s", m.program, strings.Join(m.arguments, " "), err, strings.TrimSpace(string(output)))
		}
	}
	return nil
}

// Arrive shows this process, which Command has started, its own cgroup in place of the machine's.
func Arrive() error {
	// Mounts must not be seen outside, nor new ones of the machine here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts of the cluster from those of the machine: %w", err)
	}
	// The kernel refuses to mount a file system on itself (do_add_mount in fs/namespace.c), so there is another one between
	// the two views of the cgroups.
	if err := unix.Mount("tmpfs", cgroups, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("hide the cgroups of the machine: %w", err)
	}
	if err := unix.Mount("cgroup2", cgroups, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount the cgroups of the cluster: %w", err)
	}
	return nil
}

// Helpers returns the folder for the unpacked helpers of kedge, which root has in /var/cache.
func Helpers() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for the helpers of kedge: %w", err)
	}
	return filepath.Join(cache, "kedge"), nil
}
