package controllers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// running knows the names of the controllers that run.
type running struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// follow returns controllers that do the same, and that r notices when they begin and end.
func (r *running) follow(controllers []app.Controller) []app.Controller {
	r.names = map[string]struct{}{}
	followed := make([]app.Controller, len(controllers))
	for i, controller := range controllers {
		followed[i] = followedController{controller, r}
	}
	return followed
}

// String returns the names of the controllers that run, in alphabetical order.
func (r *running) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(r.names)), ", ")
}

func (r *running) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

type followedController struct {
	app.Controller
	running *running
}

// Run implements app.Controller.
func (c followedController) Run(ctx context.Context) {
	name := c.Name()
	c.running.change(func() { c.running.names[name] = struct{}{} })
	defer c.running.change(func() { delete(c.running.names, name) })
	c.Controller.Run(ctx)
}
