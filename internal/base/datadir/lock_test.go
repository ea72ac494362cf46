package datadir

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary play a second kedge: with LOCK_DIR set, it takes that
// directory, prints that, and waits to be killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCK_DIR"); dir != "" {
		lock, err := Dir(dir).Lock()
		var host *Lock
		if err == nil {
			host, err = lockHost(filepath.Join(dir, "run"))
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("locked")
		time.Sleep(time.Hour)
		// Keeps the lock alive, because the garbage collector closes unused files.
		runtime.KeepAlive(lock)
		runtime.KeepAlive(host)
	}
	os.Exit(m.Run())
}

func startHolder(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "LOCK_DIR="+dir)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("holder said %q", line)
	}
	return command
}

func TestLockNamesTheHolderAndEndsWithIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first := startHolder(t, dir)

	_, err := Dir(dir).Lock()
	if err == nil {
		t.Fatal("two processes hold one data directory")
	}
	for _, want := range []string{dir, fmt.Sprintf("(pid %d)", first.Process.Pid), "--data-dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	lock, err := Dir(dir).Lock()
	if err != nil {
		t.Fatalf("lock after kill -9 of the holder: %v", err)
	}
	// A child of this process must not keep the lock alive.
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	startHolder(t, dir)
}

func TestHoldOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	if lock, err := Dir(dir).Hold(); err != nil || lock.Release() != nil {
		t.Fatalf("hold a folder that kedge has not used: %v", err)
	}
	mount(t, dir, 0, "size=1m")
	first := startHolder(t, dir)
	if _, err := Dir(dir).Hold(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", first.Process.Pid)) {
		t.Errorf("hold a folder that another process holds: got %v, want its pid", err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("disk is not full: %v", err)
	}
	lock, err := Dir(dir).Hold()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(dir).Hold(); err == nil {
		t.Error("held twice")
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

func TestLockHostNamesTheHolder(t *testing.T) {
	dir := t.TempDir()
	first := startHolder(t, dir)
	_, err := lockHost(filepath.Join(dir, "run"))
	if err == nil {
		t.Fatal("two processes hold one host")
	}
	for _, want := range []string{"this host", fmt.Sprintf("(pid %d)", first.Process.Pid)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if _, err := lockHost(filepath.Join(dir, "run")); err != nil {
		t.Errorf("lock the host after kill -9 of the holder: %v", err)
	}
}

func TestLockSaysWhatIsWrongWithTheFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	tests := map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"read-only": {func(t *testing.T, dir string) {
			mount(t, dir, 0, "size=1m")
			if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}, "read-only"},
		"read-only with data": {func(t *testing.T, dir string) {
			mount(t, dir, 0, "size=1m")
			lock, err := Dir(dir).Lock()
			if err != nil {
				t.Fatal(err)
			}
			if err := lock.Release(); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
		}, "mount it read-write"},
		"full": {func(t *testing.T, dir string) {
			mount(t, dir, 0, "size=128k")
		}, "free some space"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.prepare(t, dir)
			before := list(t, dir)
			_, err := Dir(dir).Lock()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q in it", err, test.want)
			}
			after := list(t, dir)
			if after = strings.TrimPrefix(after, "lock"); strings.TrimPrefix(before, "lock") != after {
				t.Errorf("got files %q, want none but the lock", after)
			}
		})
	}
}

func TestLockWhereAFileIsInTheWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Dir(filepath.Join(file, "data")).Lock()
	if !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("got %v", err)
	}
}

func mount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
