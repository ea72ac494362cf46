package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Reader answers the frequent questions to the CRI without its socket. It implements
// kubelet.Runtime. It can be used once the Containerd is ready.
type Reader struct {
	service  service
	metadata *metadata.DB
}

// service is the part of containerd's CRI plugin that Reader calls.
type service interface {
	cri.RuntimeServiceServer
	cri.ImageServiceServer
}

// Reader returns the Reader of this containerd.
func (c *Containerd) Reader() *Reader { return &c.reader }

// Store returns containerd's content and images, of all its namespaces. The caller must wait until
// the Containerd is ready.
func (c *Containerd) Store() (content.Store, images.Store) {
	return c.reader.metadata.ContentStore(), metadata.NewImageStore(c.reader.metadata)
}

// capture registers a plugin that finds the CRI plugin and the metadata, because a containerd server
// does not give access to its plugins. The list of plugins is global to the process, as is containerd.
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/cri/cri.go initCRIService
func (r *Reader) capture() {
	registry.Register(&plugin.Registration{
		Type:     "dev.kedge.v1", // a type that no other plugin requires
		ID:       "reader",
		Requires: []plugin.Type{plugins.GRPCPlugin, plugins.MetadataPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			instance, err := ic.GetByID(plugins.GRPCPlugin, "cri")
			if err != nil {
				return nil, fmt.Errorf("find the CRI: %w", err)
			}
			var ok bool
			if r.service, ok = instance.(service); !ok {
				return nil, errors.New("the plugin does not implement the CRI")
			}
			if instance, err = ic.GetSingle(plugins.MetadataPlugin); err != nil {
				return nil, fmt.Errorf("find the metadata: %w", err)
			}
			if r.metadata, ok = instance.(*metadata.DB); !ok {
				return nil, errors.New("the metadata plugin returned no database")
			}
			return r, nil
		},
	})
}

// Status returns the conditions of the runtime, which tell whether pods can be started.
func (r *Reader) Status(ctx context.Context, verbose bool) (*cri.StatusResponse, error) {
	return read(ctx, r.service.Status, &cri.StatusRequest{Verbose: verbose})
}

// ListPodSandbox returns the sandboxes that filter selects, or all if filter is nil.
func (r *Reader) ListPodSandbox(ctx context.Context, filter *cri.PodSandboxFilter) ([]*cri.PodSandbox, error) {
	response, err := read(ctx, r.service.ListPodSandbox, &cri.ListPodSandboxRequest{Filter: filter})
	return response.GetItems(), err
}

// ListContainers returns the containers that filter selects, or all if filter is nil.
func (r *Reader) ListContainers(ctx context.Context, filter *cri.ContainerFilter) ([]*cri.Container, error) {
	response, err := read(ctx, r.service.ListContainers, &cri.ListContainersRequest{Filter: filter})
	return response.GetContainers(), err
}

// ListContainerStats returns the resource use of containers, as their shims report it.
func (r *Reader) ListContainerStats(ctx context.Context, filter *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	response, err := read(ctx, r.service.ListContainerStats, &cri.ListContainerStatsRequest{Filter: filter})
	return response.GetStats(), err
}

// ListImages returns the images that filter selects, or all if filter is nil.
func (r *Reader) ListImages(ctx context.Context, filter *cri.ImageFilter) ([]*cri.Image, error) {
	response, err := read(ctx, r.service.ListImages, &cri.ListImagesRequest{Filter: filter})
	return response.GetImages(), err
}

// ImageFsInfo returns how much of their file system the images use.
func (r *Reader) ImageFsInfo(ctx context.Context) (*cri.ImageFsInfoResponse, error) {
	return read(ctx, r.service.ImageFsInfo, &cri.ImageFsInfoRequest{})
}
