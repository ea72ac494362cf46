package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// The interval at which lists are tried again after a failed pull. It doubles with each failure.
const (
	minPullInterval = 10 * time.Second
	maxPullInterval = 5 * time.Minute
)

// pullLists pulls and pins the images that the lists in the folder name. It tries again until it
// has all of them or ctx is done.
func (p *preloader) pullLists(ctx context.Context) {
	said := ""
	pulling := loop.Loop{First: minPullInterval, Last: maxPullInterval, Quiet: func(error) bool { return true }}
	_ = pulling.Until(ctx, func(ctx context.Context) error {
		err := p.pullMissing(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			p.fail(fmt.Sprintf("cannot pull all images that the lists in %s name, trying again: %v", p.cfg.ImagesDir, err))
		}
		return err
	})
}

func (p *preloader) pullMissing(ctx context.Context) error {
	names, err := p.names()
	faults := []error{err}
	for _, name := range names {
		image, err := p.client.ImageService().Get(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			if _, err = p.service.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}}); err == nil {
				p.log.Infof("pulled %s, which a list in %s names", name, p.cfg.ImagesDir)
				err = p.pin(ctx, name)
			}
		case err == nil && image.Labels[pinnedLabel] != pinned:
			err = p.pin(ctx, name)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

// pin keeps an image from the kubelet's garbage collection.
func (p *preloader) pin(ctx context.Context, name string) error {
	image, err := p.client.GetImage(ctx, name)
	if err != nil {
		return err
	}
	if _, err := nameOtherwise(ctx, p.client, image, labels(preloadedLabel)); err != nil {
		return err
	}
	_, err = p.client.ImageService().Update(ctx, images.Image{Name: name, Labels: labels(preloadedLabel)}, "labels")
	return err
}

// listed returns the names of the images in the lists, and the other names of those images that are
// on this node.
func (p *preloader) listed(ctx context.Context) ([]string, error) {
	// pullMissing reports what is wrong with a list.
	names, _ := p.names()
	all := names
	for _, name := range names {
		image, err := p.client.GetImage(ctx, name)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find image %s: %w", name, err)
		}
		others, err := otherNames(ctx, image)
		if err != nil {
			return nil, err
		}
		all = append(all, others...)
	}
	return all, nil
}

// names reads the lists. Each line has one image name. A comment begins with #.
func (p *preloader) names() ([]string, error) {
	files, err := p.find(listSuffix)
	if err != nil {
		return nil, err
	}
	var names []string
	var faults []error
	for _, file := range files {
		text, err := datadir.ReadText(file)
		if err != nil {
			faults = append(faults, err)
		}
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			word, _, _ := strings.Cut(line, "#")
			if word = strings.TrimSpace(word); word == "" {
				continue
			}
			name, err := reference.ParseDockerRef(word)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s:%d: %q is not an image name: %w", file, number, word, err))
				continue
			}
			names = append(names, name.String())
		}
	}
	return names, errors.Join(faults...)
}
