package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DebianRoot returns a folder with a minimal Debian. The first call makes it with debootstrap,
// which must be installed.
func DebianRoot(repository string) (string, error) {
	root := filepath.Join(repository, "build", "debian-root")
	lock, err := os.Create(root + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	// Another test may be making it.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	// It is made under another name, so that an interrupted one is made again.
	half := root + ".half"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if output, err := exec.Command("debootstrap", "--variant=minbase", "bookworm", half).CombinedOutput(); err != nil {
		return "", fmt.Errorf("debootstrap: %w: %s", err, output)
	}
	return root, os.Rename(half, root)
}
