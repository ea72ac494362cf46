package controllers

import (
	"context"
	"testing"
	"testing/synctest"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

type fakeController struct {
	name string
	run  func(context.Context)
}

func (f fakeController) Name() string            { return f.name }
func (f fakeController) Run(ctx context.Context) { f.run(ctx) }

// TestLateControllers names the controllers that do not stop within the time that they have.
func TestLateControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stops := func(ctx context.Context) { <-ctx.Done() }
		hangs := func(context.Context) { <-release }
		ctx, cancel := context.WithCancel(t.Context())
		var late running
		controllers := late.follow([]app.Controller{fakeController{"c", hangs}, fakeController{"b", stops}, fakeController{"a", hangs}})
		stopped := make(chan bool)
		go func() { stopped <- app.RunControllers(ctx, app.ControllerContext{}, controllers, 1, shutdownTimeout) }()
		synctest.Wait()
		if got := late.String(); got != "a, b, c" {
			t.Errorf("the controllers that run are %q, but all three run", got)
		}
		cancel()
		if <-stopped {
			t.Error("controllers that hang count as stopped")
		}
		if got := late.String(); got != "a, c" {
			t.Errorf("the late controllers are %q, but a and c hang", got)
		}
		close(release)
		synctest.Wait()
		if got := late.String(); got != "" {
			t.Errorf("the controllers %q count as running after all have ended", got)
		}
	})
}
