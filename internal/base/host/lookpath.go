package host

import (
	"os/exec"
	"path/filepath"
)

// LookPath returns the path of a program: the first one in PATH and then in folders. The error is that
// of exec.LookPath.
func LookPath(program string, folders ...string) (string, error) {
	path, err := exec.LookPath(program)
	for _, folder := range folders {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(folder, program))
	}
	return path, err
}
