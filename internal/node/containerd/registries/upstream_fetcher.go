// Follows github.com/containerd/containerd/v2 v2.3.7, core/transfer/registry/registry.go.

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
	// peers resolves what no registry can be asked for, unless it is nil, or has
	// not answered for patience.
	peers    remotes.Resolver
	patience time.Duration
}

var _ transfer.ImageResolverOptionSetter = (*fetcher)(nil)

func (f *fetcher) String() string { return "registries.yaml (" + f.reference + ")" }

// Resolve implements transfer.ImageResolver. What a tag stands for is up to the
// registry. While that cannot be asked, a server's word is taken: else an edge
// site could start nothing new without its uplink. Its no is a no, also for images
// that other nodes have: they may be private, or withdrawn.
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
			return "", ocispec.Descriptor{}, fmt.Errorf("%w; and no server has it", a.err)
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

// refused tells whether a registry answered, and has none for us.
func refused(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errdefs.IsNotFound(err) || errors.Is(err, docker.ErrInvalidAuthorization) ||
		errors.As(err, &status) && status.StatusCode < http.StatusInternalServerError && status.StatusCode != http.StatusTooManyRequests
}
