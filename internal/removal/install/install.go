// Package install knows what install.sh made on this host: cli asks it to stop
// the service, and to take everything away again. The script and this package
// have in common the files below, and nothing else.
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
	// manifestFile lists, a path in each line, what is not below /etc/kedge; the
	// executable is the first.
	manifestFile = "/etc/kedge/installed"
	// commandFile has the service's command with its flags, such as
	// server --data-dir /mnt/kedge. No word of it needs quotes.
	commandFile = "/etc/kedge/command"
)

// EnvironmentFile has the service's environment, a NAME='value' in each line. It is of
// install.sh too, below the root of the host.
const EnvironmentFile = "/etc/kedge/kedge.env"

// manager is a service manager. Its commands are run if it is on the host.
type manager struct {
	unit string
	stop []string
	// disable comes before the unit is removed, forget after it.
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

// Host is what install.sh made on a host: nothing, if it was not run there.
type Host struct {
	root  string
	paths []string
	// Command is what the service runs, server or agent, and Flags are its flags.
	Command string
	Flags   []string
	// Environment is the service's, as NAME=value.
	Environment []string
}

// Look finds what install.sh made on the host whose files are below root: / for
// this one.
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

// lines returns the lines of a file, none if it is not there.
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

// Forget removes a variable from the service's environment, on the host whose files are
// below root, if it has that value, and tells whether it did.
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

// StopService has the service manager stop kedge, which it would start again if
// that ended in any other way.
func (h *Host) StopService(ctx context.Context) error {
	return h.each(func(m manager) error { return run(ctx, m.stop) })
}

// Remove removes everything but what is in /etc/kedge, after StopService.
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

// each calls do for each service manager that has kedge.
func (h *Host) each(do func(manager) error) error {
	var faults []error
	for _, m := range managers {
		for _, path := range h.paths {
			if path == m.unit {
				faults = append(faults, do(m))
			}
		}
	}
	return errors.Join(faults...)
}

// run runs a command, unless its program is not on this host: it was installed
// from outside then, and nothing of it runs.
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
