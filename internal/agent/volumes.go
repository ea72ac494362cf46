package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// checkVolumes fails if an earlier start of this node kept its volumes in another folder,
// and they are still there: pods would not find them. It writes down the folder.
func checkVolumes(dir datadir.Dir, settings config.Node) error {
	record, now := dir.VolumesRecord(), settings.VolumesFolder(dir)
	text, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the folder of volumes: %w", err)
	}
	before := cmp.Or(strings.TrimSpace(string(text)), dir.Storage())
	if before == now && len(text) > 0 {
		return nil
	}
	if before != now {
		has, err := volume.Any(before)
		if err != nil {
			return err
		}
		if has {
			return fmt.Errorf("default-local-storage-path is %s, and this node has volumes in %s, which its pods would not find there: set `default-local-storage-path: %[2]s`, or move that folder to the new place first",
				now, before)
		}
	}
	if err := os.MkdirAll(filepath.Dir(record), 0o700); err != nil {
		return fmt.Errorf("write the folder of volumes: %w", datadir.Explain(err))
	}
	return datadir.WriteFile(record, []byte(now+"\n"), 0o600)
}
