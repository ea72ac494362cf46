package host

import (
	"context"
	"os/exec"
	"strings"
)

// IsShuttingDown tells whether systemd is stopping this machine. It does not know of a shutdown by another
// first process.
func IsShuttingDown(ctx context.Context) bool {
	// The exit status is 0 only for a machine that is running and has no fault.
	output, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output()
	return strings.TrimSpace(string(output)) == "stopping"
}
