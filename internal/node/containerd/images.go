package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotRunning says that no containerd serves on this host.
var ErrNotRunning = errors.New("no kedge with a containerd of its own runs on this host: start it, or see `kedge status`")

// Image is one that a node has.
type Image struct {
	// Name has a tag or a digest.
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // bytes of its compressed content
	Created time.Time `json:"created"`
	// Pinned images are not collected by the kubelet.
	Pinned bool `json:"pinned"`
}

// Images are those of a containerd that runs, for commands of its host.
type Images struct{ client *containerd.Client }

// OpenImages connects to the containerd at a socket. The error is ErrNotRunning
// if nobody listens there.
func OpenImages(socket string) (*Images, error) {
	conn, err := net.Dial("unix", socket)
	switch {
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("connect to containerd: %w; run it as root", err)
	case err != nil:
		return nil, ErrNotRunning
	}
	conn.Close()
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return &Images{client}, nil
}

// Close closes the connection.
func (i *Images) Close() error { return i.client.Close() }

// List returns all images, by their names. The further names that the CRI gives
// them, IDs and digests, are left out.
func (i *Images) List(ctx context.Context) ([]Image, error) {
	stored, err := i.client.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	tagged := map[string]bool{}
	for _, image := range stored {
		if named, err := reference.ParseNamed(image.Name()); err == nil && !isDigested(named) {
			tagged[image.Target().Digest.String()] = true
		}
	}
	var list []Image
	for _, image := range stored {
		named, err := reference.ParseNamed(image.Name())
		if err != nil || isDigested(named) && tagged[image.Target().Digest.String()] {
			continue
		}
		// An image that is being removed, or is for other machines, has none.
		size, err := image.Size(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("measure %s: %w", image.Name(), err)
		}
		list = append(list, Image{
			Name:    image.Name(),
			Digest:  image.Target().Digest.String(),
			Size:    size,
			Created: image.Metadata().CreatedAt,
			Pinned:  image.Labels()[pinnedLabel] == pinned,
		})
	}
	slices.SortFunc(list, func(a, b Image) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func isDigested(name reference.Named) bool {
	_, ok := name.(reference.Digested)
	return ok
}

// Import imports an OCI or Docker archive, compressed or not, pins its images and
// returns their names. It waits until pods can use them.
func (i *Images) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	service := cri.NewImageServiceClient(i.client.Conn().(*grpc.ClientConn))
	snapshotter, err := snapshotterOf(ctx, service)
	if err != nil {
		return nil, err
	}
	names, _, err := importStream(ctx, i.client, archive, snapshotter, labels())
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := waitImage(ctx, service, name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// snapshotterOf returns the one of the CRI, which tells only its folder: that of
// the plugin.
func snapshotterOf(ctx context.Context, service cri.ImageServiceClient) (string, error) {
	answer, err := service.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("ask containerd where images are: %w", err)
	}
	for _, disk := range answer.ImageFilesystems {
		if _, name, ok := strings.Cut(filepath.Base(disk.GetFsId().GetMountpoint()), ".snapshotter.v1."); ok {
			return name, nil
		}
	}
	return overlayfs, nil
}

// Export writes images, given by names as in a pod, as an OCI archive that Docker
// can load as well. What was not pulled for this machine is left out.
func (i *Images) Export(ctx context.Context, names []string, to io.Writer) error {
	options := []archive.ExportOpt{archive.WithPlatform(platforms.DefaultStrict()), archive.WithSkipMissing(i.client.ContentStore())}
	for _, name := range names {
		image, err := i.find(ctx, name)
		if err != nil {
			return err
		}
		options = append(options, archive.WithManifest(image.Target, image.Name))
	}
	if err := i.client.Export(ctx, to, options...); err != nil {
		return fmt.Errorf("export %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

func (i *Images) find(ctx context.Context, name string) (images.Image, error) {
	full, err := reference.ParseDockerRef(name)
	if err != nil {
		return images.Image{}, fmt.Errorf("%q is no name of an image: %w", name, err)
	}
	image, err := i.client.ImageService().Get(ctx, full.String())
	if errdefs.IsNotFound(err) {
		return images.Image{}, fmt.Errorf("there is no image %s here; `kedge image list` lists them", full)
	}
	if err != nil {
		return images.Image{}, fmt.Errorf("find image %s: %w", full, err)
	}
	return image, nil
}
