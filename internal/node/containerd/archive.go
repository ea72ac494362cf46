package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
)

// namespace is the namespace that the CRI plugin uses (internal/cri/constants).
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/constants/constants.go K8sContainerdNamespace
const namespace = "k8s.io"

// The labels that the CRI gives images (internal/cri/labels).
const (
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/labels/labels.go
	managedLabel = "io.cri-containerd.image"
	// pinnedLabel keeps an image from the kubelet's garbage collection.
	pinnedLabel = "io.cri-containerd.pinned"
	pinned      = "pinned"
)

// preloadedLabel is on images that are pinned because of the images folder.
const preloadedLabel = "kedge.dev/preloaded"

// labels returns the labels of an image that must not be garbage-collected, with more set to "true".
func labels(more ...string) map[string]string {
	all := map[string]string{managedLabel: "managed", pinnedLabel: pinned}
	for _, label := range more {
		all[label] = "true"
	}
	return all
}

// importStream imports an OCI or Docker archive, compressed or not, and gives its images the labels.
// It returns the images' names, and the other names by which the CRI knows them: their IDs, and
// their names with a digest.
func importStream(ctx context.Context, client *containerd.Client, archive io.Reader, snapshotter string, labels map[string]string) (names, ids []string, err error) {
	stream, err := compression.DecompressStream(archive)
	if err != nil {
		return nil, nil, fmt.Errorf("decompress: %w", err)
	}
	defer stream.Close()
	// The images must not be collected between being imported and unpacked.
	ctx, release, err := client.WithLease(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("hold images: %w", err)
	}
	defer release(context.WithoutCancel(ctx))

	found, err := client.Import(ctx, stream, containerd.WithImageLabels(labels),
		containerd.WithSkipMissing(), containerd.WithImageRefTranslator(fullName))
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil, nil, fmt.Errorf("the archive has no image for %s: %w", platforms.DefaultString(), err)
		}
		return nil, nil, err
	}
	for _, i := range found {
		image := containerd.NewImage(client, i)
		if err := image.Unpack(ctx, snapshotter); err != nil {
			return nil, nil, fmt.Errorf("unpack %s: %w", i.Name, err)
		}
		others, err := nameOtherwise(ctx, client, image, labels)
		if err != nil {
			return nil, nil, err
		}
		names, ids = append(names, i.Name), append(ids, others...)
	}
	if len(names) == 0 {
		return nil, nil, errors.New("the archive has no image with a full name: save the image by its full name, such as registry.example.com/app:1, not by its ID or tag")
	}
	slices.Sort(names)
	return slices.Compact(names), ids, nil
}

// fullName returns the name by which pods refer to an image that an OCI archive calls name.
// It returns "" if name is only a tag.
func fullName(name string) string {
	named, err := reference.ParseDockerRef(name)
	if err != nil || !strings.ContainsAny(name, ":/@") {
		return ""
	}
	return named.String()
}

// nameOtherwise gives an image the other names by which the CRI finds it, and returns these: its
// ID, and NAME@DIGEST, by which a pod may ask for it. The CRI adds the ID itself only to images that
// do not have its labels (UpdateImage in internal/cri/server/images/image_pull.go), and the digest
// only to those that it pulls (PullImage). It looks for a digest only among the names (Resolve in
// internal/cri/store/image/image.go).
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/images/image_pull.go CRIImageService.UpdateImage CRIImageService.PullImage
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/store/image/image.go Store.Resolve
func nameOtherwise(ctx context.Context, client *containerd.Client, image containerd.Image, labels map[string]string) ([]string, error) {
	others, err := otherNames(ctx, image)
	if err != nil {
		return nil, err
	}
	for _, name := range others {
		other := images.Image{Name: name, Target: image.Target(), Labels: labels}
		if _, err = client.ImageService().Create(ctx, other); errdefs.IsAlreadyExists(err) {
			_, err = client.ImageService().Update(ctx, other, "target", "labels")
		}
		if err != nil {
			return nil, fmt.Errorf("name image %s: %w", image.Name(), err)
		}
	}
	return others, nil
}

// otherNames returns an image's ID, and its name with a digest unless it has one already.
func otherNames(ctx context.Context, image containerd.Image) ([]string, error) {
	config, err := image.Config(ctx)
	if err != nil {
		return nil, fmt.Errorf("read configuration of %s: %w", image.Name(), err)
	}
	others := []string{config.Digest.String()}
	if named, err := reference.ParseNamed(image.Name()); err == nil && !isDigested(named) {
		others = append(others, reference.TrimNamed(named).String()+"@"+image.Target().Digest.String())
	}
	return others, nil
}
