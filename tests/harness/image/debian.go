package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// DebianRoot returns a folder with a bare Debian, made once by debootstrap, which
// must be installed.
func DebianRoot(repository string) (string, error) {
	root := filepath.Join(repository, "build", "debian-root")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	// Under another name: an interrupted one is made again.
	half := root + ".half"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if output, err := exec.Command("debootstrap", "--variant=minbase", "bookworm", half).CombinedOutput(); err != nil {
		return "", fmt.Errorf("debootstrap: %w: %s", err, output)
	}
	return root, os.Rename(half, root)
}
