package machines

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// userMode runs a machine with a kernel that is a process: User Mode Linux. Programs on it run at the
// speed of this machine, but have one processor. Each system call is slower.
type userMode struct {
	// source is the version of Debian's package linux-source, of which the kernel is built.
	source string
}

// userInterface is what such a kernel calls its first network interface.
const userInterface = "vec0"

func (k userMode) prepare(t *testing.T, l *life) {
	t.Helper()
	l.program = file(t, "linux-"+k.source)
	l.base = file(t, l.suite+".img")
	l.tap, l.parameter = l.link(t, userInterface)
}

func (k userMode) command(l *life) *harness.Cmd {
	cmd := l.host.Command(l.ctx, l.program, "mem="+strconv.Itoa(l.memory)+"M",
		// What the machine changes is in the first file.
		"ubd0="+filepath.Join(l.folder, "changes")+","+l.base, "root=/dev/ubda", "rw",
		"con=null", "con0=null,fd:1", "ssl=null",
		"uml_dir="+l.folder, "umid=machine",
		"vec0:transport=tap,ifname="+l.tap+",depth=128,gro=1", l.parameter)
	// The memory is a file, which is removed at once.
	cmd.Env = append(cmd.Env, "TMPDIR=/dev/shm")
	return cmd
}

func (k userMode) booted(*testing.T, *life) {}
