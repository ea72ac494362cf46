package containerd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// tasks is the path below containerd's state of the folder with the containers of pods.
var tasks = []string{"io.containerd.runtime.v2.task", "k8s.io"}

// makePassable makes the folder of containerd's state, and lets every user of the host pass
// through it to the file systems of containers. containerd makes these folders with the
// mode 0711, and leaves those alone that are there: see datadir.MakePassable.
//
//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/bundle.go NewBundle
func makePassable(state string) error {
	if err := datadir.MakePassable(state); err != nil {
		return err
	}
	for i := range tasks {
		folder := filepath.Join(append([]string{state}, tasks[:i+1]...)...)
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err := datadir.MakePassable(folder); err != nil {
			return err
		}
	}
	return nil
}
