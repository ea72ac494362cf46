package upgradecontrol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/release"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

const (
	// filePatience is how long the servers may take to find the file of a Plan. filePause is
	// the time between two looks.
	filePatience = 2 * time.Minute
	filePause    = 5 * time.Second
)

// question is what the controller asks about a Plan: the version that its spec means, or
// without it, executables of a version.
type question struct {
	plan          *upgrades.Plan
	version       string
	architectures []string
}

// key tells questions apart.
func (q question) key() string {
	return fmt.Sprintf("%s/%d/%s/%s", q.plan.UID, q.plan.Generation, q.version, strings.Join(q.architectures, ","))
}

// answer is what is known about a question.
type answer struct {
	done        bool
	version     string
	executables map[string]upgrades.Executable
	err         error
}

// resolver answers questions while this server leads. Each takes a while.
type resolver struct {
	store *store.Store
	// keyFile is release.KeyFile, except in tests.
	keyFile string
	// answered is called after each answer.
	answered func()

	// tasks are by the keys of their questions. Only one goroutine calls ask and forget.
	tasks   map[string]*task
	running sync.WaitGroup
}

// task is a question that was asked.
type task struct {
	cancel context.CancelFunc
	asked  bool

	mu     sync.Mutex
	answer answer
}

// ask returns what is known about a question.
func (r *resolver) ask(ctx context.Context, q question) answer {
	t := r.tasks[q.key()]
	if t == nil {
		ctx, cancel := context.WithCancel(ctx)
		t = &task{cancel: cancel}
		r.tasks[q.key()] = t
		r.running.Go(func() {
			got := r.find(ctx, q)
			got.done = true
			t.mu.Lock()
			t.answer = got
			t.mu.Unlock()
			r.answered()
		})
	}
	t.asked = true
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answer
}

// forget ends the questions that nobody has asked since it was called last.
func (r *resolver) forget() {
	for key, t := range r.tasks {
		if !t.asked {
			t.cancel()
			delete(r.tasks, key)
		}
		t.asked = false
	}
}

// find answers a question.
func (r *resolver) find(ctx context.Context, q question) (got answer) {
	spec := &q.plan.Spec
	switch {
	case spec.File != "":
		got.version, got.executables, got.err = r.file(ctx, spec)
	case q.version != "":
		got.executables, got.err = r.release(ctx, q)
	case spec.Version != "":
		got.version = spec.Version
	default:
		var source *release.Source
		if source, got.err = release.Open(spec.Source, r.keyFile); got.err == nil {
			got.version, got.err = source.Channel(ctx, spec.Channel)
		}
	}
	return got
}

// release gets executables of a version.
func (r *resolver) release(ctx context.Context, q question) (map[string]upgrades.Executable, error) {
	source, err := release.Open(q.plan.Spec.Source, r.keyFile)
	if err != nil {
		return nil, err
	}
	found, err := source.Find(ctx, q.version)
	if err != nil {
		return nil, err
	}
	executables := map[string]upgrades.Executable{}
	for _, architecture := range q.architectures {
		digest, err := found.Digest(architecture)
		if err != nil {
			return nil, err
		}
		if r.store.Size(digest) == 0 {
			if err := found.Get(ctx, architecture, func(body io.Reader) error { return r.store.Put(digest, body) }); err != nil {
				return nil, err
			}
		}
		executables[architecture] = upgrades.Executable{SHA256: digest, Size: r.store.Size(digest)}
	}
	return executables, nil
}

// file gets the executable of a file on one of the servers. Each server with the file puts it
// into its store.
func (r *resolver) file(ctx context.Context, spec *upgrades.PlanSpec) (string, map[string]upgrades.Executable, error) {
	digest, ends := spec.SHA256, time.Now().Add(filePatience)
	for {
		err := r.store.Take(spec.File, digest)
		if err == nil {
			break
		}
		fetched := r.store.Fetch(ctx, digest)
		if fetched == nil {
			break
		}
		if time.Now().After(ends) {
			return "", nil, fmt.Errorf("no server has %s with the SHA-256 digest %s: copy it to this path on a server, and make the Plan again: %w", spec.File, digest, errors.Join(err, fetched))
		}
		if err := loop.Sleep(ctx, filePause); err != nil {
			return "", nil, err
		}
	}
	architecture, err := r.store.Architecture(digest)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", spec.File, err)
	}
	if architecture != runtime.GOARCH {
		return "", nil, fmt.Errorf("%s is for %s, and the server is %s, so that it cannot ask it for its version: use spec.version with spec.source", spec.File, architecture, runtime.GOARCH)
	}
	version, err := r.store.Version(ctx, digest)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", spec.File, err)
	}
	return version, map[string]upgrades.Executable{architecture: {SHA256: digest, Size: r.store.Size(digest)}}, nil
}
