package host

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// ShimSlice is the slice of systemd that the shims of containers are in. A shim runs on when kedge
// stops, so it is not in the cgroup of kedge's unit, whose limits it would share.
const ShimSlice = "system-kedge.slice"

// ShimCgroup is the cgroup of ShimSlice, as long as systemd has started the slice (systemd.slice(5)).
const ShimCgroup = "/system.slice/" + ShimSlice

// Systemctl asks systemd to do something.
func Systemctl(ctx context.Context, args ...string) error {
	output, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// IsShuttingDown tells whether systemd is stopping this machine. It does not know of a shutdown by another
// first process.
func IsShuttingDown(ctx context.Context) bool {
	// The exit status is 0 only for a machine that is running and has no fault.
	output, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output()
	return strings.TrimSpace(string(output)) == "stopping"
}
