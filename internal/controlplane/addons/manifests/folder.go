// Package manifests keeps a cluster in step with the manifests that its user puts
// into the folder server/manifests: what is in a file is applied, what was taken
// out of it is removed, and what somebody else has changed stays as they want it.
// The server package runs it on the server that leads.
package manifests

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/folderwatch"
)

// How long is waited until a file that failed is applied again; each time twice as
// long, up to the last.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// settle is how long a change is left alone: who writes a file is not done with
	// the first bytes, and what is not in it yet would be removed.
	settle = time.Second
	// patience is for the folder, and for an API that does not answer yet.
	patience = 10 * time.Second
)

// Config is what a Folder needs.
type Config struct {
	// Path is the folder's. It must be there.
	Path string
	// Server is this server's name: what a file of another server's has put into
	// the cluster is not removed because the file is not here.
	Server string
	// Disable are names of files, without their ends, or of folders below Path.
	Disable []string
	// Client may do everything, until ctx ends.
	Client func(ctx context.Context) *rest.Config
}

// Folder applies the files. It implements the election package's Loops: one server
// does it at a time.
type Folder struct {
	cfg Config
	log *logrus.Entry
}

// New makes a Folder.
func New(cfg Config) *Folder {
	return &Folder{cfg, logrus.WithField("component", "manifests")}
}

// Follow waits until this server leads.
func (*Folder) Follow(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Lead keeps the cluster in step until ctx ends.
func (f *Folder) Lead(ctx context.Context, ready func()) error {
	cfg := f.cfg
	var err error
	// Walks do not go through links.
	if cfg.Path, err = filepath.EvalSymlinks(cfg.Path); err != nil {
		return fmt.Errorf("find manifests: %w", err)
	}
	config := cfg.Client(ctx)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	changed := folderwatch.StartTree(ctx, cfg.Path, settle, f.log)
	ready()
	k := newKeeper(cfg, client, f.log)
	k.discover = func() meta.RESTMapper {
		return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api.Discovery()))
	}
	k.recorder = sync.OnceValue(func() record.EventRecorder {
		return events.NewRecorder(ctx, api, "kedge-manifests", cfg.Server)
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case _, more := <-changed:
			if !more {
				return nil
			}
		case <-timer.C:
		}
		timer.Stop()
		if wait := k.sync(ctx); wait > 0 {
			timer.Reset(wait)
		}
	}
}

func newKeeper(cfg Config, client dynamic.Interface, log *logrus.Entry) *keeper {
	return &keeper{Config: cfg, log: log, client: client, files: map[string]*file{}}
}

// keeper is the work of a term. It has no lock: one goroutine works at a time.
type keeper struct {
	Config
	log    *logrus.Entry
	client dynamic.Interface
	// discover asks the API which kinds there are.
	discover func() meta.RESTMapper
	// recorder makes what events are written with: most clusters never need one.
	recorder func() record.EventRecorder

	// recalled says that files has those that put something into the cluster before
	// this term.
	recalled bool
	// files are by their paths below the folder.
	files map[string]*file
}

// file is what is known of a file, or of one that is gone.
type file struct {
	// tried is the digest of the content that was applied last, or why it could not be
	// read, or gone.
	tried string
	// objects are those in it, the last time that it could be read.
	objects  []string
	failures int
	next     time.Time
	// told is what the user was told last.
	told string
}

// gone stands for the digest of a file that is not there.
const gone = "gone"

// sync does what is to be done now, and returns how long to wait for what has
// failed, or zero.
func (k *keeper) sync(ctx context.Context) (wait time.Duration) {
	found, err := scan(k.Path, k.Disable)
	if err == nil && !k.recalled {
		err = k.recall(ctx, found)
	}
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warnf("The files in %s are not applied, and will be tried again in %s: %v", k.Path, patience, err)
		}
		return patience
	}
	for _, names := range []iter.Seq[string]{maps.Keys(found.contents), maps.Keys(found.faults)} {
		for name := range names {
			if k.files[name] == nil {
				k.files[name] = &file{}
			}
		}
	}
	var due []*attempt
	for _, name := range slices.Sorted(maps.Keys(k.files)) {
		f := k.files[name]
		here, fault := found.has(name), found.faults[name]
		if !here && found.isSkipped(name) {
			continue
		}
		state := gone
		if fault != nil {
			state = fault.Error()
		} else if here {
			sum := sha256.Sum256(found.contents[name])
			state = string(sum[:])
		}
		if f.tried != state {
			f.tried, f.failures, f.next = state, 0, time.Time{}
		} else if f.failures == 0 {
			continue
		}
		if !time.Now().Before(f.next) {
			due = append(due, &attempt{keeper: k, name: name, file: f, here: here, content: found.contents[name], unread: fault})
		}
	}
	k.try(ctx, due)
	for name, f := range k.files {
		if f.tried == gone && f.failures == 0 {
			delete(k.files, name)
		}
		if f.failures == 0 || found.isSkipped(name) {
			continue
		}
		if left := max(time.Until(f.next), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// try makes attempts. All files are read before the first is applied: an object that
// went from one to another stays.
func (k *keeper) try(ctx context.Context, due []*attempt) {
	if len(due) == 0 {
		return
	}
	mapper := k.discover()
	for _, a := range due {
		a.read(mapper)
	}
	for _, a := range due {
		err := a.make(ctx, mapper)
		if ctx.Err() != nil {
			return
		}
		k.note(a, err)
	}
}

// note remembers how an attempt went, and tells the user what they need to know.
func (k *keeper) note(a *attempt, err error) {
	f := a.file
	if err != nil {
		delay := min(firstRetry<<min(f.failures, 20), lastRetry)
		f.failures++
		f.next = time.Now().Add(delay)
		// A kind that is in the same file is known in a moment only, and so is a
		// namespace.
		message := err.Error()
		if _, wrong := errors.AsType[*contentError](err); !wrong {
			if f.failures == 1 {
				k.log.Debugf("%s: %v", a.name, err)
				return
			}
			message += ". kedge tries again, and at once when the file changes"
		}
		k.tell(a, corev1.EventTypeWarning, "Failed", message)
		return
	}
	f.failures = 0
	switch {
	case !a.here:
		k.log.Infof("Removed what was applied of %s", a.name)
	case len(a.left) > 0:
		k.tell(a, corev1.EventTypeWarning, "Conflict", strings.Join(a.left, "; ")+
			". Somebody else has set this, and it stays so. Take it out of the file, or set it to what the file says")
	default:
		k.log.Infof("Applied %s", a.name)
		if f.told != "" {
			k.tell(a, corev1.EventTypeNormal, "Applied", "all of it is applied now")
			f.told = ""
		}
	}
}

// tell writes an event about a file, and the log. Events end after an hour, so that
// each attempt renews what is said; the log has it once.
func (k *keeper) tell(a *attempt, kind, reason, message string) {
	message = filepath.Join(k.Path, a.name) + ": " + message
	if a.file.told != message && kind == corev1.EventTypeWarning {
		k.log.Warn(message)
	}
	a.file.told = message
	k.recorder().Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: setName(a.name),
	}, kind, reason, events.Message(message))
}
