package machines

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// nspawn runs a machine as a container of systemd-nspawn: with systemd as the first process and at
// full speed, but on the kernel of this machine.
type nspawn struct {
	// unified is "yes" for cgroups of version 2 alone, "no" for version 1 alone, or empty for what this
	// machine has. If the controllers of this machine are in version 1, version 2 has none.
	unified string
}

// first is the first process of the machine until it becomes systemd. It lets the machine write to its own
// part of the cgroups, which systemd-nspawn mounts read-only if they are of version 1. Only the flag of the
// container's own mounts changes. It makes the devices that kedge and its pods use, which a container does
// not have by itself.
const first = `
for folder in /sys/fs/cgroup/*/; do
	mountpoint -q "$folder" && mount -o remount,bind,rw "$folder"
done
mknod /dev/loop-control c 10 237
mknod /dev/kmsg c 1 11
mknod /dev/fuse c 10 229
for i in $(seq 0 63); do mknod "/dev/loop$i" b 7 "$i"; done
exec /sbin/init
`

func (k nspawn) prepare(t *testing.T, l *life) {
	t.Helper()
	harness.Need(t, "systemd-container")
	// Overlays cannot be stacked as kedge would need it, so it is a copy.
	system := strings.TrimSuffix(l.file(t, l.image()), ".img")
	l.run(t, "cp", "-a", system, filepath.Join(l.folder, "root"))
	l.address = "127.0.0.1"
}

func (k nspawn) command(l *life) *harness.Cmd {
	// systemd-nspawn makes the container's cgroups below its own.
	script := `for folder in /sys/fs/cgroup/*/; do echo $$ >"$folder$0/cgroup.procs" || exit; done; exec "$@"`
	words := []string{"-c", script, l.host.Cgroup(), "systemd-nspawn", "--directory=" + filepath.Join(l.folder, "root"),
		"--keep-unit", "--register=no", "--machine=machine", "--console=pipe", "--capability=all", "--link-journal=no",
		"--bind=" + l.tree + ":" + sourceTree, "--system-call-filter=@keyring bpf @mount", "--kill-signal=SIGRTMIN+3", "/bin/sh", "-c", first}
	cmd := l.host.Command(l.ctx, "/bin/sh", words...)
	cmd.Env = append(cmd.Env, "SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes")
	if k.unified != "" {
		cmd.Env = append(cmd.Env, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="+k.unified)
	}
	return cmd
}

func (k nspawn) booted(*testing.T, *life) {}

// mount has nothing to do: the source tree is bound into the machine.
func (k nspawn) mount(*life) string { return "true" }

func (k nspawn) slow() int { return 1 }
