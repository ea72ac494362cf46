package containerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPassable has the folders of an earlier start, which a mask had closed. Another user,
// as the root of a pod with hostUsers: false is, must pass through them to a file system of
// a container, and see nothing else there.
func TestPassable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a program as another user")
	}
	top, err := os.MkdirTemp("/tmp", "passable")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	state := filepath.Join(top, "containerd")
	rootfs := filepath.Join(append([]string{state}, append(tasks, "id", "rootfs")...)...)
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		t.Fatal(err)
	}
	for folder := filepath.Dir(filepath.Dir(rootfs)); folder != top; folder = filepath.Dir(folder) {
		if err := os.Chmod(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(top, 0o711); err != nil {
		t.Fatal(err)
	}
	other := func(command string) error {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(output)))
		}
		return nil
	}
	enter := "cd " + rootfs
	if other(enter) == nil {
		t.Fatal("the folders were open before: the test shows nothing")
	}
	if err := makePassable(state); err != nil {
		t.Fatal(err)
	}
	if err := other(enter); err != nil {
		t.Errorf("another user does not reach a file system: %v", err)
	}
	if other("ls "+state) == nil || other("ls "+filepath.Join(state, tasks[0])) == nil {
		t.Error("another user can list the containers")
	}
	if err := makePassable(filepath.Join(top, "new")); err != nil {
		t.Errorf("a first start: %v", err)
	}
}
