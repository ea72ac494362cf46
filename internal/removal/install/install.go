// Package install finds what install.sh has put on this host, for killall and
// uninstall. cli calls it to stop the service, and to remove everything again. The
// script and this package share only the files below.
package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Files of install.sh, below the root of the host.
const (
	// manifestFile lists the installed paths that are not below /etc/kedge, one in each
	// line. The first is the executable.
	manifestFile = "/etc/kedge/installed"
	// commandFile has the service's command with its flags, such as
	// server --data-dir /mnt/kedge. No word of it needs quotes.
	commandFile = "/etc/kedge/command"
)

// EnvironmentFile has the service's environment, a NAME='value' in each line. install.sh
// makes it too, below the root of the host.
const EnvironmentFile = "/etc/kedge/kedge.env"

// manager is a service manager. Its commands run only if it is on the host.
type manager struct {
	unit string
	stop []string
	// disable runs before the unit is removed, and forget after it.
	disable, forget []string
}

var managers = []manager{
	{
		unit:    "/etc/systemd/system/kedge.service",
		stop:    []string{"systemctl", "stop", "kedge"},
		disable: []string{"systemctl", "--quiet", "disable", "kedge"},
		forget:  []string{"systemctl", "daemon-reload"},
	},
	{
		unit:    "/etc/init.d/kedge",
		stop:    []string{"rc-service", "--quiet", "kedge", "stop"},
		disable: []string{"rc-update", "--quiet", "delete", "kedge"},
	},
}

// Host is what install.sh has put on a host. It is empty if install.sh has not run there.
type Host struct {
	root  string
	paths []string
	// Command is the command that the service runs, server or agent. Flags are its flags.
	Command string
	Flags   []string
	// Environment is the service's environment, as NAME=value.
	Environment []string
}

// Look finds what install.sh has put on the host whose files are below root, which is /
// for this host.
func Look(root string) (*Host, error) {
	h := &Host{root: root}
	paths, err := h.lines(manifestFile)
	if err != nil {
		return nil, err
	}
	command, err := h.lines(commandFile)
	if err != nil {
		return nil, err
	}
	variables, err := h.lines(EnvironmentFile)
	if err != nil {
		return nil, err
	}
	h.paths = paths
	if words := strings.Fields(strings.Join(command, " ")); len(words) > 0 {
		h.Command, h.Flags = words[0], words[1:]
	}
	for _, line := range variables {
		name, value, _ := strings.Cut(line, "=")
		h.Environment = append(h.Environment, name+"="+strings.Trim(value, "'"))
	}
	return h, nil
}

// lines returns the lines of a file, none if the file is missing.
func (h *Host) lines(path string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(h.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("find what is installed: %w; run it with sudo", err)
	}
	if err != nil {
		return nil, fmt.Errorf("find what is installed: %w", err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }), nil
}

// Forget removes a variable from the service's environment if it has the given value, and
// tells whether it did. The host's files are below root.
func Forget(root, name, value string) (removed bool, err error) {
	h := &Host{root: root}
	lines, err := h.lines(EnvironmentFile)
	if err != nil {
		return false, err
	}
	kept := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return line == name+"='"+value+"'" })
	if len(kept) == len(lines) {
		return false, nil
	}
	text := strings.Join(append(kept, ""), "\n")
	if err := datadir.WriteFile(filepath.Join(root, EnvironmentFile), []byte(text), 0o600); err != nil {
		return false, fmt.Errorf("remove %s: %w", name, err)
	}
	return true, nil
}

// StopService makes the service manager stop kedge. If kedge ended in any other way, the
// service manager would start it again.
func (h *Host) StopService(ctx context.Context) error {
	return h.each(func(m manager) error { return run(ctx, m.stop) })
}

// Remove removes everything except the content of /etc/kedge. Call StopService first.
func (h *Host) Remove(ctx context.Context) error {
	faults := []error{h.each(func(m manager) error { return run(ctx, m.disable) })}
	for _, path := range h.paths {
		if err := os.RemoveAll(filepath.Join(h.root, path)); err != nil {
			faults = append(faults, fmt.Errorf("remove what was installed: %w", err))
		}
	}
	faults = append(faults, h.each(func(m manager) error { return run(ctx, m.forget) }))
	return errors.Join(faults...)
}

// each calls do for each service manager that has a unit of kedge.
func (h *Host) each(do func(manager) error) error {
	var faults []error
	for _, m := range managers {
		if slices.Contains(h.paths, m.unit) {
			faults = append(faults, do(m))
		}
	}
	return errors.Join(faults...)
}

// run runs a command. It does nothing if the program is not on this host: the unit was
// then installed from outside, and nothing of it runs.
func run(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return nil
	}
	output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
