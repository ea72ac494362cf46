package machines

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// userMode runs a machine with a kernel that is a process: User Mode Linux. Programs on it run at the
// speed of this machine. Each system call is slower.
type userMode struct {
	// source is the version of Debian's package linux-source, of which the kernel is built. If it is empty,
	// the kernel is that of the package user-mode-linux, which has modules.
	source string
	// seccomp is true if the kernel catches system calls by seccomp, which is quicker than by ptrace. A kernel since 6.16 can
	// do that. The programs of such a machine could read and write the memory of its kernel.
	seccomp bool
}

// userInterface is what such a kernel calls its first network interface.
const userInterface = "vec0"

func (k userMode) prepare(t *testing.T, l *life) {
	t.Helper()
	allowMappings(t)
	if k.source == "" {
		harness.Need(t, "user-mode-linux")
		l.program = "/usr/bin/linux.uml"
	} else {
		l.program = l.file(t, "linux-"+k.source)
	}
	l.base = l.file(t, l.image())
	l.link(t, userInterface, "port", "link add "+cable+" type veth peer name port", "link set "+cable+" up")
	if l.security != "" {
		l.parameters = append(l.parameters, "security="+l.security, l.security+"=1")
	}
	if k.seccomp {
		l.parameters = append(l.parameters, "seccomp=on")
	}
	if k.source == "" {
		l.parameters = append(l.parameters, "machine.modules")
	}
}

// allowMappings lets processes of this machine have a mapping for each page of 4 GiB. The kernel of a machine maps the pages of
// a program one by one. If it cannot map one more page, a thread of the program runs into the same page fault for ever, and
// the other threads wait for this one. The limit is a setting of this whole machine. A higher one costs nothing, so it stays.
func allowMappings(t *testing.T) {
	t.Helper()
	const limit, enough = "/proc/sys/vm/max_map_count", 1 << 20
	text, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if now >= enough {
		return
	}
	if err := os.WriteFile(limit, []byte(strconv.Itoa(enough)), 0o644); err != nil {
		t.Fatalf("this machine must allow %d mappings: %v", enough, err)
	}
}

func (k userMode) command(l *life) *harness.Cmd {
	words := append([]string{"mem=" + strconv.Itoa(l.memory) + "M",
		// What the machine changes is in the first file.
		"ubd0=" + filepath.Join(l.folder, "changes") + "," + l.base, "root=/dev/ubda", "rw",
		"con=null", "con0=null,fd:1", "ssl=null",
		// At a reboot the process ends. Otherwise it would start itself anew.
		"noreboot",
		"uml_dir=" + l.folder, "umid=machine",
		"vec0:transport=raw,ifname=" + cable + ",depth=128,gro=1"}, l.parameters...)
	cmd := l.host.Command(l.ctx, l.program, words...)
	// The memory is a file, which is removed at once.
	cmd.Env = append(cmd.Env, "TMPDIR=/dev/shm")
	return cmd
}

// booted gives a kernel of the package a clock speed in /proc/cpuinfo, without which cAdvisor does not
// start. A unit does that at the next boots, before kedge starts.
func (k userMode) booted(t *testing.T, l *life) {
	t.Helper()
	l.sh(t, `grep -q "cpu MHz" /proc/cpuinfo || {
cat >/etc/systemd/system/clock-speed.service <<'END'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c "sed 's/^vendor_id.*/&\\ncpu MHz\\t\\t: 2000.000/' /proc/cpuinfo >/run/cpuinfo && mount --bind /run/cpuinfo /proc/cpuinfo"
[Install]
RequiredBy=sysinit.target
END
systemctl enable --now clock-speed.service; }`)
}

func (k userMode) slow() int { return 3 }

// mount tries the two ways in which kernels take the folder: the second one is that of kernels before 6.11.
func (k userMode) mount(l *life) string {
	return fmt.Sprintf("{ mount -t hostfs -o hostfs=%[1]s none %[2]s || mount -t hostfs -o %[1]s none %[2]s; }", l.tree, sourceTree)
}
