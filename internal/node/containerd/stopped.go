package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// Stopped is the root folder of another program's containerd, which does not run. Its
// files are only read.
type Stopped string

// lockPatience is how long a containerd that has just ended may keep its lock.
const lockPatience = time.Second

// metadataFile and contentFolder are containerd's paths below its root.
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/content/local/store.go store.blobPath
const (
	metadataFile  = "io.containerd.metadata.v1.bolt/meta.db"
	contentFolder = "io.containerd.content.v1.content"
)

// Images returns the images of pods that are complete for this machine, and the names of
// those of which a part is missing. There are none if the folder does not exist.
func (s Stopped) Images(ctx context.Context) (complete []images.Image, missing []string, err error) {
	file := filepath.Join(string(s), metadataFile)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return nil, nil, fmt.Errorf("open containerd's database %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx = namespaces.WithNamespace(ctx, namespace)
	all, err := metadata.NewImageStore(metadata.NewDB(db, nil, nil)).List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list containerd's images: %w", err)
	}
	for _, image := range all {
		// The CRI gives each image also its ID as a name.
		if strings.HasPrefix(image.Name, "sha256:") {
			continue
		}
		available, _, _, lacking, err := images.Check(ctx, blobs(s), image.Target, platforms.Default())
		if err != nil || !available || len(lacking) > 0 {
			missing = append(missing, image.Name)
			continue
		}
		complete = append(complete, image)
	}
	return complete, missing, nil
}

// Export writes images that Images returned as an OCI archive.
func (s Stopped) Export(ctx context.Context, all []images.Image, w io.Writer) error {
	if err := archive.Export(ctx, blobs(s), w, archive.WithImages(all), archive.WithPlatform(platforms.Default()), archive.WithSkipDockerManifest()); err != nil {
		return fmt.Errorf("export images: %w", err)
	}
	return nil
}

// blobs reads the content of a Stopped. containerd's own store would write to the folder.
type blobs Stopped

func (b blobs) path(d digest.Digest) string {
	return filepath.Join(string(b), contentFolder, "blobs", d.Algorithm().String(), d.Encoded())
}

// Info implements content.InfoProvider.
func (b blobs) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	if err := d.Validate(); err != nil {
		return content.Info{}, err
	}
	info, err := os.Stat(b.path(d))
	if err != nil {
		return content.Info{}, notFound(err)
	}
	return content.Info{Digest: d, Size: info.Size()}, nil
}

// ReaderAt implements content.Provider.
func (b blobs) ReaderAt(_ context.Context, described ocispec.Descriptor) (content.ReaderAt, error) {
	if err := described.Digest.Validate(); err != nil {
		return nil, err
	}
	file, err := os.Open(b.path(described.Digest))
	if err != nil {
		return nil, notFound(err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return blob{file, info.Size()}, nil
}

// notFound gives an error of the file system the type that containerd asks for.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(errdefs.ErrNotFound, err)
	}
	return err
}

// blob is an open blob of a number of bytes.
type blob struct {
	*os.File
	size int64
}

// Size implements content.ReaderAt.
func (b blob) Size() int64 { return b.size }
