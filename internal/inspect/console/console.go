// Package console is the page of `kedge console`. It runs where the user is and asks the API with the user's kubeconfig. So
// it shows and changes what the user may, opens nothing on a server, and costs the cluster nothing while nobody looks. The
// cli package calls it.
//
// Each page is a function from a visit to data, with a template of the same name. Pages work without JavaScript. With it,
// a page stays open as a stream, and is sent again when it has changed.
package console

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// Config is what New needs.
type Config struct {
	// Clients call the API as the user.
	Clients why.Clients
	// Namespace is the user's own one. It is shown to a user who may not list namespaces.
	Namespace string
	// Exec runs programs in containers as the user.
	Exec Exec
	// Recording returns what a node has recorded.
	Recording func(ctx context.Context, node string, since time.Duration) (*recording.Recording, error)
	// Cluster is the name of the cluster for people.
	Cluster string
	Log     *logrus.Entry
}

// Console serves the page.
type Console struct {
	Config
	findings findings
	shells   shells
}

// New makes the page.
func New(cfg Config) *Console {
	return &Console{Config: cfg, shells: shells{exec: cfg.Exec, leaving: leaving, byID: map[string]*shell{}}}
}

// shutdown is how long open streams may take to end.
const shutdown = time.Second

// Serve serves the page at a listener on a loopback address, until ctx ends. It calls opened with the link that opens the
// page once.
func (c *Console) Serve(ctx context.Context, listener net.Listener, opened func(link string)) error {
	guard := newGuard(listener.Addr().String())
	ctx, cancel := context.WithCancel(ctx)
	c.shells.ctx = ctx
	defer c.shells.wait()
	defer cancel()
	server := &http.Server{
		Handler:           guard.protect(c.routes()),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var stopping sync.WaitGroup
	defer stopping.Wait()
	stopping.Go(func() {
		<-ctx.Done()
		ending, end := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
		defer end()
		if server.Shutdown(ending) != nil {
			_ = server.Close() // a client that does not read
		}
	})
	opened(guard.link())
	err := server.Serve(listener)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// findings are what is wrong in the cluster. They take many questions to the API, so several visits share an answer.
type findings struct {
	mu   sync.Mutex
	at   time.Time
	told unwell
	err  error
}

// unwell is the answer of why.Unwell.
type unwell struct {
	Reports []*why.Report
	Looked  int
	Unread  []string
}

// fresh is how long an answer is told to others.
const fresh = 10 * time.Second

// unwell returns what is wrong in a namespace, or in the cluster.
func (c *Console) unwell(ctx context.Context, namespace string) (unwell, error) {
	f := &c.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	if namespace != "" {
		reports, looked, unread, err := why.Unwell(ctx, c.Clients, namespace)
		return unwell{reports, looked, unread}, err
	}
	if now := c.Clients.Now(); now.Sub(f.at) > fresh || f.err != nil {
		reports, looked, unread, err := why.Unwell(ctx, c.Clients, "")
		f.told, f.err, f.at = unwell{reports, looked, unread}, err, now
	}
	return f.told, f.err
}
