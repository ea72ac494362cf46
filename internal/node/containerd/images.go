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

// ErrNotRunning means that no containerd of kedge's own serves on this host.
var ErrNotRunning = errors.New("no kedge with its own containerd runs on this host: start kedge, or run `kedge status` to see why it does not run")

// Image is an image on a node.
type Image struct {
	// Name is the full name, with a tag or a digest.
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // bytes of its compressed content
	Created time.Time `json:"created"`
	// Pinned is set if the kubelet's garbage collection keeps the image.
	Pinned bool `json:"pinned"`
}

// Images gives commands on the same host access to the images of a running containerd.
type Images struct{ client *containerd.Client }

// OpenImages connects to the containerd at a socket. It returns ErrNotRunning if nobody listens
// there.
func OpenImages(socket string) (*Images, error) {
	conn, err := net.Dial("unix", socket)
	switch {
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("connect to containerd: %w: run this command as root", err)
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

// List returns all images, sorted by name. It leaves out the additional names that the CRI gives
// images: IDs and digests.
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
		// An image that is being removed, or is for another platform, has no size.
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

// Import imports an OCI or Docker archive, compressed or not, pins its images and returns their
// names. It returns when pods can use the images.
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

// snapshotterOf returns the snapshotter of the CRI. The CRI tells only the folder, whose name is
// that of the plugin.
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

// Export writes the named images as an OCI archive, which Docker can load too. Names are written
// as in a pod. Content that was not pulled because it is for other platforms is left out.
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
		return images.Image{}, fmt.Errorf("%q is not an image name: %w", name, err)
	}
	image, err := i.client.ImageService().Get(ctx, full.String())
	if errdefs.IsNotFound(err) {
		return images.Image{}, fmt.Errorf("this node has no image %s: run `kedge image list` for the list of images", full)
	}
	if err != nil {
		return images.Image{}, fmt.Errorf("find image %s: %w", full, err)
	}
	return image, nil
}
