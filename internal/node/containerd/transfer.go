package containerd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/containerd/v2/core/streaming"
	"github.com/containerd/containerd/v2/core/transfer"
	ociregistry "github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/typeurl/v2"

	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
)

// credentialsTimeout limits the wait for credentials. An OCIRegistry without credentials only logs
// that and does not answer (core/transfer/registry/registry.go, MarshalAny).
const credentialsTimeout = 10 * time.Second

// Source decides where images come from. registries.Registries implements it.
type Source interface {
	// Fetcher returns what pulls the image, or nil if containerd shall pull it itself.
	Fetcher(registries.Pull) (transfer.ImageFetcher, error)
}

// interceptPulls makes source decide where images are pulled from. It puts source in front of
// containerd's transfer service, through which the CRI and ctr pull. Upstream has no other way to
// change registries while containerd runs, or to rewrite names: k3s patches containerd for that.
// The list of plugins is global to the process, as is containerd.
//
//upstream:relies-on github.com/containerd/plugin/registry/register.go Register Reset Graph
//upstream:relies-on github.com/containerd/containerd/v2/plugins/transfer/plugin.go init
func interceptPulls(source Source) {
	all := registry.Graph(func(*plugin.Registration) bool { return false })
	registry.Reset()
	for _, r := range all {
		if r.Type == plugins.TransferPlugin && r.ID == "local" {
			next := r.InitFn
			r.InitFn = func(ic *plugin.InitContext) (any, error) {
				instance, err := next(ic)
				if err != nil {
					return nil, err
				}
				service, ok := instance.(transfer.Transferrer)
				if !ok {
					return nil, fmt.Errorf("the plugin %s does not implement transfers", r.URI())
				}
				return &transferrer{Transferrer: service, source: source}, nil
			}
		}
		registry.Register(&r)
	}
}

// transferrer is containerd's transfer service, except that images are pulled from source.
type transferrer struct {
	transfer.Transferrer
	source Source
}

// Transfer implements transfer.Transferrer.
func (t *transferrer) Transfer(ctx context.Context, from, to any, options ...transfer.Opt) error {
	image, pulled := from.(*ociregistry.OCIRegistry)
	if _, stored := to.(transfer.ImageStorer); !pulled || !stored {
		return t.Transferrer.Transfer(ctx, from, to, options...)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pull, err := describe(ctx, image)
	if err != nil {
		return fmt.Errorf("pull %s: %w", image.Image(), err)
	}
	fetcher, err := t.source.Fetcher(pull)
	if err != nil {
		return err
	}
	if fetcher != nil {
		from = fetcher
	}
	return t.Transferrer.Transfer(ctx, from, to, options...)
}

// describe returns what is to be pulled and with which credentials, which are available until ctx
// is done. An OCIRegistry gives these only by a message and a stream, as to a transfer service
// in another process.
//
//upstream:relies-on github.com/containerd/containerd/v2/core/transfer/registry/registry.go OCIRegistry.MarshalAny
func describe(ctx context.Context, image *ociregistry.OCIRegistry) (registries.Pull, error) {
	streams := pipes{}
	encoded, err := image.MarshalAny(ctx, &streams)
	if err != nil {
		return registries.Pull{}, err
	}
	var message transfertypes.OCIRegistry
	if err := typeurl.UnmarshalTo(encoded, &message); err != nil {
		return registries.Pull{}, err
	}
	pull := registries.Pull{Reference: message.Reference, HostDir: message.Resolver.HostDir, Header: http.Header{}}
	for name, value := range message.Resolver.Headers {
		pull.Header.Set(name, value)
	}
	stream := streams[message.Resolver.AuthStream]
	var mu sync.Mutex // each question must be followed by its answer
	pull.Credentials = func(host string) (string, string, error) {
		if stream == nil {
			return "", "", nil
		}
		mu.Lock()
		defer mu.Unlock()
		return askCredentials(stream, message.Reference, host)
	}
	return pull, nil
}

//upstream:relies-on github.com/containerd/containerd/v2/core/transfer/registry/registry.go OCIRegistry.MarshalAny credCallback.GetCredentials
func askCredentials(stream *pipe, reference, host string) (user, secret string, err error) {
	question, err := typeurl.MarshalAny(&transfertypes.AuthRequest{Host: host, Reference: reference})
	if err != nil {
		return "", "", err
	}
	if err := stream.Send(question); err != nil {
		return "", "", fmt.Errorf("ask for credentials: %w", err)
	}
	encoded, err := stream.recv(credentialsTimeout)
	if err != nil {
		return "", "", fmt.Errorf("ask for credentials: %w", err)
	}
	var answer transfertypes.AuthResponse
	if err := typeurl.UnmarshalTo(encoded, &answer); err != nil {
		return "", "", err
	}
	if answer.AuthType == transfertypes.AuthType_HEADER {
		return "", "", nil // upstream ignores it too
	}
	return answer.Username, answer.Secret, nil
}

// pipes are streams within this process, by name.
type pipes map[string]*pipe

// Create implements streaming.StreamCreator: it returns the other end of a stream.
func (p pipes) Create(ctx context.Context, name string) (streaming.Stream, error) {
	here, there := make(chan typeurl.Any), make(chan typeurl.Any)
	p[name] = &pipe{ctx, here, there}
	return &pipe{ctx, there, here}, nil
}

// pipe is one end of a stream. It ends with its context.
type pipe struct {
	ctx     context.Context
	in, out chan typeurl.Any
}

func (p *pipe) Send(message typeurl.Any) error {
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	select {
	case p.out <- message:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *pipe) Recv() (typeurl.Any, error) { return p.recv(math.MaxInt64) }

func (p *pipe) recv(timeout time.Duration) (typeurl.Any, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case message := <-p.in:
		return message, nil
	case <-timer.C:
		return nil, errors.New("no answer")
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

// Close implements streaming.Stream.
func (p *pipe) Close() error { return nil }
