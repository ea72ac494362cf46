// Follows github.com/containerd/containerd/v2 v2.4.2, core/transfer/registry/registry.go.

package registries

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fetcher pulls one image. It is upstream's OCIRegistry
// (core/transfer/registry/registry.go) over another resolver.
//
//upstream:follows github.com/containerd/containerd/v2/core/transfer/registry/registry.go OCIRegistry.Resolve OCIRegistry.SetResolverOptions OCIRegistry.Fetcher
type fetcher struct {
	reference string
	resolver  remotes.Resolver
	// peers resolves a tag if no registry can be reached, or none has answered within
	// patience. It is nil if nodes do not share images.
	peers    remotes.Resolver
	patience time.Duration
}

var _ transfer.ImageResolverOptionSetter = (*fetcher)(nil)

func (f *fetcher) String() string { return "registries.yaml (" + f.reference + ")" }

// Resolve implements transfer.ImageResolver. The registry decides what a tag stands for. If the
// registry cannot be reached, Resolve asks servers instead: otherwise an edge site could start
// nothing new without its uplink. If the registry refuses, Resolve fails even for images that other
// nodes have, because they may be private or withdrawn.
func (f *fetcher) Resolve(ctx context.Context) (string, ocispec.Descriptor, error) {
	if f.peers == nil {
		return f.resolver.Resolve(ctx, f.reference)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer := make(chan resolved, 1)
	go func() {
		name, found, err := f.resolver.Resolve(ctx, f.reference)
		answer <- resolved{name, found, err}
	}()
	select {
	case a := <-answer:
		if a.err == nil || ctx.Err() != nil || refused(a.err) {
			return a.name, a.found, a.err
		}
		name, found, err := f.peers.Resolve(ctx, f.reference)
		if err != nil {
			return "", ocispec.Descriptor{}, fmt.Errorf("%w; the servers of this cluster do not have the image either", a.err)
		}
		return name, found, nil
	case <-time.After(f.patience):
		if name, found, err := f.peers.Resolve(ctx, f.reference); err == nil {
			return name, found, nil
		}
		a := <-answer
		return a.name, a.found, a.err
	}
}

// Fetcher implements transfer.ImageFetcher.
func (f *fetcher) Fetcher(ctx context.Context, ref string) (transfer.Fetcher, error) {
	return f.resolver.Fetcher(ctx, ref)
}

// SetResolverOptions implements transfer.ImageResolverOptionSetter.
func (f *fetcher) SetResolverOptions(options ...transfer.ImageResolverOption) {
	if r, ok := f.resolver.(remotes.ResolverWithOptions); ok {
		r.SetOptions(options...)
	}
}

// resolved is what Resolve returns.
type resolved struct {
	name  string
	found ocispec.Descriptor
	err   error
}

// refused tells whether the error is a registry's answer that it does not give this image.
func refused(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errdefs.IsNotFound(err) || errors.Is(err, docker.ErrInvalidAuthorization) ||
		errors.As(err, &status) && status.StatusCode < http.StatusInternalServerError && status.StatusCode != http.StatusTooManyRequests
}
