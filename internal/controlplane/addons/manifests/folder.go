// Package manifests keeps a cluster in step with the manifests that the user puts
// into the folder server/manifests. It applies what is in a file, and removes
// what was taken out of it. What somebody else has changed in the cluster stays
// as it is. The server package runs it on the elected server.
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

// firstRetry is the pause before a failed file is applied again. Each later pause
// is twice as long, up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// settle is how long a changed file is left alone. Its writer may not be done,
	// and objects that are not in the file yet would be removed.
	settle = time.Second
	// patience is the pause after a failure to read the folder, or while the API
	// does not answer.
	patience = 10 * time.Second
)

// Config is what a Folder needs.
type Config struct {
	// Path is the path of the folder, which must exist.
	Path string
	// Server is the name of this server. A file of another server is not here, so
	// what it put into the cluster is not removed.
	Server string
	// Disable lists names of files without their extensions, or of folders below
	// Path.
	Disable []string
	// Client may do everything. Its requests end with ctx.
	Client func(ctx context.Context) *rest.Config
}

// Folder applies the files. It implements the election package's Loops: one server
// at a time does it.
type Folder struct {
	cfg Config
	log *logrus.Entry
}

// New makes a Folder.
func New(cfg Config) *Folder {
	return &Folder{cfg, logrus.WithField("component", "manifests")}
}

// Lead keeps the cluster in step until ctx ends.
func (f *Folder) Lead(ctx context.Context, ready func()) error {
	cfg := f.cfg
	var err error
	// WalkDir does not follow links.
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

// keeper is the state of one term. It needs no lock, because one goroutine works
// at a time.
type keeper struct {
	Config
	log    *logrus.Entry
	client dynamic.Interface
	// discover asks the API for its kinds.
	discover func() meta.RESTMapper
	// recorder makes the recorder of Events. Most clusters never need one.
	recorder func() record.EventRecorder

	// recalled is true once files includes the files that put something into the
	// cluster before this term.
	recalled bool
	// files has the known files by their paths below the folder.
	files map[string]*file
}

// file is the state of a file, or of a deleted one.
type file struct {
	// tried is the digest of the content that was applied last, or the reason why the
	// file could not be read, or gone.
	tried string
	// objects are the objects in the file when it could last be read.
	objects  []identity
	failures int
	// wrong says that the file failed by its own content. Another file may mend other failures.
	wrong bool
	next  time.Time
	// told is the last message to the user, and toldOf is what tried was then.
	told, toldOf string
}

// gone stands for the digest of a file that does not exist.
const gone = "gone"

// sync applies what is due. It returns how long to wait for the next retry, or
// zero if there is none.
func (k *keeper) sync(ctx context.Context) (wait time.Duration) {
	found, err := scan(k.Path, k.Disable)
	if err == nil && !k.recalled {
		err = k.recall(ctx, found)
	}
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warnf("Cannot apply the files in %s, trying again in %s: %v", k.Path, patience, err)
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
	k.try(ctx, k.due(found))
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

// due returns the attempts that are to be made now. If a file has changed, they include
// those that have failed before: the change may be what they need.
func (k *keeper) due(found *files) (due []*attempt) {
	changed := false
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
			f.tried, f.failures, f.next, changed = state, 0, time.Time{}, true
		} else if f.failures == 0 {
			continue
		}
		due = append(due, &attempt{keeper: k, name: name, file: f, here: here, content: found.contents[name], unread: fault})
	}
	return slices.DeleteFunc(due, func(a *attempt) bool {
		return time.Now().Before(a.file.next) && (!changed || a.file.wrong)
	})
}

// try makes attempts. It reads all files before it applies the first one, so that an
// object that moved from one file to another is not removed.
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

// note remembers the result of an attempt, and tells the user if necessary.
func (k *keeper) note(a *attempt, err error) {
	f := a.file
	f.wrong = a.wrong != nil
	_, ofContent := errors.AsType[*contentError](err)
	if errors.Is(err, errKustomize) {
		f.failures = 0 // there is nothing to try again
		k.tell(a, corev1.EventTypeWarning, "Ignored", err.Error())
		return
	}
	if err != nil {
		delay := min(firstRetry<<min(f.failures, 20), lastRetry)
		if f.wrong {
			delay = lastRetry // only for the Event, which expires
		}
		f.failures++
		f.next = time.Now().Add(delay)
		message := err.Error()
		if !ofContent {
			// A kind or a namespace from the same file exists only a moment later.
			if f.failures == 1 {
				k.log.Debugf("%s: %v", a.name, err)
				return
			}
			message += ". kedge tries again later, and at once when the file changes"
		}
		k.tell(a, corev1.EventTypeWarning, "Failed", message)
		return
	}
	f.failures = 0
	switch {
	case !a.here:
		k.log.Infof("Removed the objects of %s", a.name)
	case len(a.left) > 0:
		k.tell(a, corev1.EventTypeWarning, "Conflict", strings.Join(a.left, "; ")+
			". Somebody else has set this field, and kedge does not change it. Remove it from the file, or set it in the cluster to the file's value")
	default:
		k.log.Infof("Applied %s", a.name)
		if f.told != "" {
			k.tell(a, corev1.EventTypeNormal, "Applied", "all objects of the file are applied now")
			f.told = ""
		}
	}
}

// tell writes an Event about a file, and a log line. Events expire after an hour,
// so each attempt writes the Event again. The log has the message once.
func (k *keeper) tell(a *attempt, kind, reason, message string) {
	f := a.file
	message = filepath.Join(k.Path, a.name) + ": " + message
	if f.toldOf == f.tried {
		message = events.Steady(f.told, message)
	}
	if f.told != message && kind == corev1.EventTypeWarning {
		k.log.Warn(message)
	}
	f.told, f.toldOf = message, f.tried
	k.recorder().Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: setName(a.name),
	}, kind, reason, events.Message(message))
}
