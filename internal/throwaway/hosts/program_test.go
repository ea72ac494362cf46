package hosts

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		cause     error
		user      int
		explained bool
	}{
		{unix.EPERM, 1000, true},
		{unix.ENOSPC, 1000, true}, // user.max_user_namespaces is reached
		{unix.EACCES, 1000, true},
		{unix.ENOMEM, 1000, false},
		{unix.EPERM, 0, false},
	} {
		err := explain(fmt.Errorf("start: %w", test.cause), test.user)
		if errors.Is(err, ErrUserNamespace) != test.explained || !errors.Is(err, test.cause) {
			t.Errorf("%v for user %d: %v", test.cause, test.user, err)
		}
	}
}

// TestExplainSetup has hosts whose /proc is hidden in part, and others.
func TestExplainSetup(t *testing.T) {
	const stock = "22 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n" +
		"30 22 0:25 / /proc/sys/fs/binfmt_misc rw shared:6 - autofs systemd-1 rw\n23 1 0:21 / /sys rw - sysfs sysfs rw\n"
	refused := errors.New("set up: mount proc proc on /proc: operation not permitted")
	for name, test := range map[string]struct {
		fault        error
		user         int
		mounts, want string
	}{
		"a file over cpuinfo":    {refused, 1000, stock + "31 22 8:1 /root/cpuinfo /proc/cpuinfo rw - ext4 /dev/sda1 rw\n", "(sudo umount /proc/cpuinfo)"},
		"a part of proc on proc": {refused, 1000, stock + "31 22 0:20 /tty /proc rw - proc proc rw\n", "(sudo umount /proc)"},
		"a stock host":           {refused, 1000, stock, "user.max_user_namespaces"},
		"another mount":          {errors.New("set up: mount tmpfs on /run: permission denied"), 1000, stock + "31 22 8:1 / /proc/cpuinfo rw - ext4 a rw\n", "user.max_user_namespaces"},
		"root":                   {refused, 0, stock + "31 22 8:1 / /proc/cpuinfo rw - ext4 a rw\n", "operation not permitted"},
	} {
		err := explainSetup(test.fault, test.user, test.mounts)
		if !errors.Is(err, test.fault) || !strings.Contains(err.Error(), test.want) ||
			errors.Is(err, ErrUserNamespace) != (test.want == "user.max_user_namespaces") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
