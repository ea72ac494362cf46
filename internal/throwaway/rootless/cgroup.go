package rootless

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroups is where the machine has its cgroups.
const cgroups = "/sys/fs/cgroup"

// enterCgroup makes sure that this process is in a cgroup that its user may divide. If the user has a systemd, it starts
// this process again in a scope of its own.
func enterCgroup() error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("find the cgroup of this process: %w", err)
	}
	own, ok := unified(string(text))
	if !ok {
		return fmt.Errorf("this host has cgroups of version 1, and its kernel lets only root divide them: boot with systemd.unified_cgroup_hierarchy=1 for version 2")
	}
	scope := fmt.Sprintf("kedge-run-%d.scope", os.Getpid())
	if filepath.Base(own) == scope {
		return writable(own)
	}
	run, err := exec.LookPath("systemd-run")
	if err != nil {
		return writable(own)
	}
	runtime := RuntimeFolder()
	if _, err := os.Stat(filepath.Join(runtime, "systemd/private")); err != nil {
		// No systemd for this user, as in a container.
		return writable(own)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the executable of kedge: %w", err)
	}
	arguments := append([]string{run, "--user", "--scope", "--quiet", "--collect", "--unit=" + scope, "--property=Delegate=yes", "--", executable}, os.Args[1:]...)
	err = unix.Exec(run, arguments, append(os.Environ(), "XDG_RUNTIME_DIR="+runtime))
	return fmt.Errorf("ask systemd for a cgroup: run %s: %w", run, err)
}

// RuntimeFolder returns the folder of this user's sockets, whether it is there or not. systemd makes it at the login, and
// su does not name it. Only root can make it: a program of another user must not answer in the place of systemd.
func RuntimeFolder() string { return runtimeFolder(os.Getenv("XDG_RUNTIME_DIR"), os.Geteuid()) }

func runtimeFolder(named string, user int) string {
	return cmp.Or(named, fmt.Sprint("/run/user/", user))
}

// unified returns the cgroup of version 2 in the text of /proc/self/cgroup, if this host has no other: cgroups(7).
func unified(text string) (path string, ok bool) {
	path, ok = strings.CutPrefix(strings.TrimSpace(text), "0::")
	return path, ok && !strings.Contains(path, "\n")
}

// writable returns an error if this user may not divide a cgroup.
func writable(path string) error {
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if err := unix.Access(filepath.Join(cgroups, path, file), unix.W_OK); err != nil {
			return fmt.Errorf("this user may not divide the cgroup %s: %w. Log in so that systemd runs for this user (`systemctl --user status` shows it; `sudo loginctl enable-linger %d` starts it without a login), or start kedge in a cgroup that is delegated to this user",
				path, err, os.Geteuid())
		}
	}
	return nil
}
