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

// ShimCgroup is the cgroup of ShimSlice (systemd.slice(5)).
const ShimCgroup = "/system.slice/" + ShimSlice

// StartShimSlice makes systemd make ShimCgroup.
func StartShimSlice(ctx context.Context) error {
	output, err := exec.CommandContext(ctx, "systemctl", "start", ShimSlice).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl start %s: %w: %s", ShimSlice, err, strings.TrimSpace(string(output)))
	}
	return nil
}
