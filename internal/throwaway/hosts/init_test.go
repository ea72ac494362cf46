package hosts

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// TestReadOnlyKeepsRestrictions gives a host folders of the machine. The machine's mounts of these folders forbid devices,
// setuid programs, or all programs. The mounts of the host must forbid the same.
func TestReadOnlyKeepsRestrictions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const restricted = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	source, target := t.TempDir(), t.TempDir()
	for _, flags := range []uintptr{0, unix.MS_NOSUID, restricted} {
		if err := (Mount{Source: "tmpfs", Target: source, Kind: "tmpfs", Flags: flags}).Do(); err != nil {
			t.Fatal(err)
		}
		for _, m := range ReadOnly(source, target) {
			if err := m.Do(); err != nil {
				t.Fatal(err)
			}
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(target, &stat); err != nil {
			t.Fatal(err)
		}
		if got, want := uintptr(stat.Flags)&(restricted|unix.MS_RDONLY), flags|unix.MS_RDONLY; got != want {
			t.Errorf("a folder with the flags %x is shown with %x, want %x", flags, got, want)
		}
		for _, path := range []string{target, source} {
			if err := unix.Unmount(path, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFirstProcessGetsNoSecrets wants the programs of a host to see no variable of the machine.
func TestFirstProcessGetsNoSecrets(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hush")
	cmd, err := Setup{Hostname: "one"}.firstProcess(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if len(cmd.Env) != 1 || !strings.HasPrefix(cmd.Env[0], initVariable+"=") {
		t.Errorf("the first process gets %q", cmd.Env)
	}
}
