package adopt

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/containerd"
)

// archiveName is the name of the archive with the images of k3s's containers.
const archiveName = "k3s-images.tar"

// takeImages puts the images that k3s has pulled into an archive, which the first start of
// kedge imports.
func (a *adoption) takeImages(ctx context.Context) error {
	from := containerd.Stopped(filepath.Join(a.k3s.data, "agent", "containerd"))
	all, missing, err := from.Images(ctx)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		a.report.note("These images are not complete in k3s's containerd, and kedge pulls them when a pod needs them: %s", strings.Join(missing, ", "))
	}
	if len(all) == 0 {
		return nil
	}
	path := filepath.Join(a.dir.Images(), archiveName)
	if err := os.MkdirAll(a.dir.Images(), 0o700); err != nil {
		return datadir.Explain(err)
	}
	if err := writeWhole(path, func(file *os.File) error { return from.Export(ctx, all, file) }); err != nil {
		return err
	}
	a.report.note("The images that k3s had pulled are in %s. kedge imports them at its first start. Remove the file then to free its space", path)
	return nil
}
