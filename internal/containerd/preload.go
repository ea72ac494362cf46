package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespace is the CRI's (internal/cri/constants).
const namespace = "k8s.io"

// preloadedLabels mark images as the CRI's own and as never to be collected
// (internal/cri/labels).
var preloadedLabels = map[string]string{
	"io.cri-containerd.image":  "managed",
	"io.cri-containerd.pinned": "pinned",
}

// archiveSuffixes are those of image archives; compression is found by content.
var archiveSuffixes = []string{".tar", ".tar.gz", ".tgz", ".tar.zst"}

// imported says which images came from an archive, which is the same one while
// its size and time are. The record is a file below Root, kept by archive.
type imported struct {
	Size    int64
	ModTime time.Time
	Images  []string
}

// preload imports the pause image and the archives in the images folder that
// are new or changed, or whose images are gone. An archive that cannot be
// imported is logged and passed over, but for the pause image's.
func (c *Containerd) preload(ctx context.Context, snapshotter string, service cri.ImageServiceClient) error {
	client, err := containerd.New(c.cfg.Socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer client.Close()
	present, err := client.ListImages(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	there := map[string]bool{}
	for _, image := range present {
		there[image.Name()] = true
	}

	archives, err := findArchives(c.cfg.ImagesDir)
	if err != nil {
		return err
	}
	recordFile := filepath.Join(c.cfg.Root, "preloaded.json")
	record := readRecord(recordFile)
	kept := map[string]imported{}
	for _, archive := range append([]string{c.cfg.PauseArchive}, archives...) {
		info, err := os.Stat(archive)
		if err == nil {
			now := imported{Size: info.Size(), ModTime: info.ModTime()}
			old, known := record[archive]
			if known && old.same(now) && !slices.ContainsFunc(old.Images, func(name string) bool { return !there[name] }) {
				kept[archive] = old
				continue
			}
			if now.Images, err = importArchive(ctx, client, archive, snapshotter); err == nil {
				kept[archive] = now
				c.log.Infof("preloaded %s from %s", strings.Join(now.Images, ", "), archive)
				continue
			}
		}
		if ctx.Err() != nil || archive == c.cfg.PauseArchive {
			return fmt.Errorf("preload images of %s: %w", archive, err)
		}
		c.log.Errorf("cannot preload images of %s: %v", archive, err)
	}
	if _, ok := slices.BinarySearch(kept[c.cfg.PauseArchive].Images, c.cfg.PauseImage); !ok {
		return fmt.Errorf("preload images of %s: it holds %v and not %s", c.cfg.PauseArchive, kept[c.cfg.PauseArchive].Images, c.cfg.PauseImage)
	}
	if err := writeRecord(recordFile, kept); err != nil {
		return err
	}
	// The CRI learns of images by events.
	for _, i := range kept {
		for _, name := range i.Images {
			if err := waitImage(ctx, service, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (i imported) same(other imported) bool {
	return i.Size == other.Size && i.ModTime.Equal(other.ModTime)
}

func findArchives(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list images to preload: %w", err)
	}
	var archives []string
	for _, entry := range entries {
		if slices.ContainsFunc(archiveSuffixes, func(s string) bool { return strings.HasSuffix(entry.Name(), s) }) {
			archives = append(archives, filepath.Join(dir, entry.Name()))
		}
	}
	return archives, nil
}

// importArchive imports an OCI or Docker archive and returns its images' names,
// sorted.
func importArchive(ctx context.Context, client *containerd.Client, archive, snapshotter string) ([]string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	stream, err := compression.DecompressStream(file)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	defer stream.Close()
	// The images must not be collected between being imported and unpacked.
	ctx, release, err := client.WithLease(ctx)
	if err != nil {
		return nil, fmt.Errorf("hold images: %w", err)
	}
	defer release(context.WithoutCancel(ctx))

	found, err := client.Import(ctx, stream, containerd.WithImageLabels(preloadedLabels), containerd.WithSkipMissing())
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("no image for %s in it: %w", platforms.DefaultString(), err)
		}
		return nil, err
	}
	var names []string
	for _, i := range found {
		image := containerd.NewImage(client, i)
		if err := image.Unpack(ctx, snapshotter); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", i.Name, err)
		}
		if err := nameByID(ctx, client, image); err != nil {
			return nil, err
		}
		names = append(names, i.Name)
	}
	if len(names) == 0 {
		return nil, errors.New("no image with a name in it: save it by its name, not its ID")
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// nameByID gives an image the second name that the CRI finds it by: the CRI
// does so itself only for images without its labels (UpdateImage in
// internal/cri/server/images/image_pull.go).
func nameByID(ctx context.Context, client *containerd.Client, image containerd.Image) error {
	config, err := image.Config(ctx)
	if err != nil {
		return fmt.Errorf("read configuration of %s: %w", image.Name(), err)
	}
	byID := images.Image{Name: config.Digest.String(), Target: image.Target(), Labels: preloadedLabels}
	if _, err := client.ImageService().Create(ctx, byID); errdefs.IsAlreadyExists(err) {
		_, err = client.ImageService().Update(ctx, byID, "target", "labels")
		if err != nil {
			return fmt.Errorf("name image %s: %w", image.Name(), err)
		}
	} else if err != nil {
		return fmt.Errorf("name image %s: %w", image.Name(), err)
	}
	return nil
}

func waitImage(ctx context.Context, service cri.ImageServiceClient, name string) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		response, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			return false, fmt.Errorf("ask containerd for image %s: %w", name, err)
		}
		return response.Image != nil, fmt.Errorf("image %s was imported, but the CRI does not find it", name)
	})
}

// readRecord returns what is recorded: nothing, if the record is damaged, and
// all is imported again.
func readRecord(file string) map[string]imported {
	record := map[string]imported{}
	if data, err := os.ReadFile(file); err != nil || json.Unmarshal(data, &record) != nil {
		return nil
	}
	return record
}

func writeRecord(file string, record map[string]imported) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(file+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return fmt.Errorf("record preloaded images: %w", err)
	}
	return nil
}
