package gateway

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// CleanupConfig is what a Cleanup needs.
type CleanupConfig struct {
	// Client calls as system:kedge:gateway-cleanup, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers provide Services and EndpointSlices.
	Informers objectcache.Source
}

// Cleanup removes the fronts that kedge has made, with their EndpointSlices, in a cluster that
// has the gateway disabled. All other objects stay. It implements the election package's
// Loops.
type Cleanup struct {
	cfg  CleanupConfig
	log  *logrus.Entry
	dial func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error) // another one in tests
}

// NewCleanup makes the loops.
func NewCleanup(cfg CleanupConfig) *Cleanup {
	return &Cleanup{cfg, logrus.WithField("component", controllerName), dial}
}

// Follow waits until this server leads.
func (*Cleanup) Follow(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Lead removes the fronts, and then waits until ctx ends. It is ready at once.
func (c *Cleanup) Lead(ctx context.Context, ready func()) error {
	ready()
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := c.clean(ctx)
		if err == nil || ctx.Err() != nil {
			<-ctx.Done()
			return nil
		}
		c.log.Warn(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// clean removes the fronts.
func (c *Cleanup) clean(ctx context.Context) error {
	api, _, err := c.dial(c.cfg.Client(ctx))
	if err != nil {
		return err
	}
	made, own, err := newStage(ctx, c.cfg.Informers)
	if err != nil {
		return err
	}
	defer made.stop()
	services, slices := made.factory.Core().V1().Services(), made.factory.Discovery().V1().EndpointSlices()
	// The stage waits for what has a handler.
	ignore := objectcache.Handler(objectcache.NewChanges(), func(any) bool { return false }, nil)
	if err := errors.Join(made.handle(services.Informer(), ignore), made.handle(slices.Informer(), ignore)); err != nil {
		return err
	}
	if !made.wait(own) {
		return nil
	}
	var failures []error
	for _, service := range frontServices(services.Lister()) {
		failures = append(failures, ignoreNotFound(deleteService(ctx, api, service)))
	}
	for _, slice := range frontSlices(slices.Lister()) {
		failures = append(failures, ignoreNotFound(deleteSlice(ctx, api, slice)))
	}
	return errors.Join(failures...)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
