package objectcache

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Stage has informers that a component starts and stops together, such as those that it needs
// only while there are objects of a kind. The order of calls is NewStage, Handle and Go, Start,
// Stop.
type Stage struct {
	informers.SharedInformerFactory
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	synced  []<-chan struct{}
}

// NewStage makes a Stage with a factory of a source. The Stage must be stopped, also if ctx ends.
func NewStage(ctx context.Context, source Source) (*Stage, error) {
	ctx, cancel := context.WithCancel(ctx)
	factory, err := source(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &Stage{SharedInformerFactory: factory, ctx: ctx, cancel: cancel}, nil
}

// Handle adds a handler to an informer of the factory.
func (s *Stage) Handle(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	s.synced = append(s.synced, registration.HasSyncedChecker().Done())
	return nil
}

// Go runs an informer that is not of the factory, until Stop. synced is closed when the informer
// has all objects.
func (s *Stage) Go(run func(context.Context), synced <-chan struct{}) {
	s.running.Go(func() { run(s.ctx) })
	s.synced = append(s.synced, synced)
}

// Start starts the informers of the factory, and waits until all handlers and informers have
// their objects. It returns false if the context of NewStage has ended.
func (s *Stage) Start() bool {
	s.StartWithContext(s.ctx)
	for _, synced := range s.synced {
		select {
		case <-synced:
		case <-s.ctx.Done():
		}
	}
	return s.ctx.Err() == nil
}

// Stop ends the informers, and waits for those of Go. It may be called on nil.
func (s *Stage) Stop() {
	if s == nil {
		return
	}
	s.cancel()
	s.Shutdown()
	s.running.Wait()
}
