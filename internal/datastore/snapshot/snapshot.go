// Package snapshot saves a server's datastore to files, lists, prunes and
// restores them, whatever kind of datastore it is: the same commands, schedule,
// format and places for all. The server package runs a Snapshots beside the
// datastore; cli asks it by localapi (ask.go), and calls
// Restore itself, on a server that does not run.
//
// file.go is the format, secrets.go what comes along besides the datastore,
// folder.go and s3.go are the places; restore.go is the way back, objects.go
// what the API shows of it all.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// Config is what Snapshots needs.
type Config struct {
	Dir      datadir.Dir
	Settings config.Snapshots
	// Encryption is the path of the API server's encryption-provider-config,
	// empty if it has none.
	Encryption string
	NodeName   string
	Store      datastore.Snapshotter
	// Elsewhere says where the API's objects are and who saves them, if they are
	// not in Store: nothing is saved or restored then.
	Elsewhere error
	// Others says what to do on the other servers after a restore, empty if there
	// are none.
	Others string
	// Client calls the API as system:kedge:snapshots; nil for who only lists.
	Client *rest.Config
	// Now is what time it is, also where the system does not know; nil for the
	// system's. Names have it, and by that the oldest go first.
	Now func() time.Time
}

// File is one snapshot in one place.
type File struct {
	// Name is that of the file, Node of the server that saved it.
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Location is a URL: file:///... or s3://BUCKET/....
	Location string    `json:"location"`
	Size     int64     `json:"size"`
	Created  time.Time `json:"created"`
	// Error says why it is of no use, if it is not.
	Error string `json:"error,omitempty"`
}

// Snapshots is the component that saves by schedule and on demand. It is to run
// while the datastore and the API do.
type Snapshots struct {
	cfg Config
	log *logrus.Entry
	// One save or deletion at a time.
	mu sync.Mutex
	// failed are the last failures by their place; the next success ends them.
	failed map[string]File
	// changed has a value when the API has yet to be told.
	changed chan struct{}
	client  kubernetes.Interface
	objects objects
	now     func() time.Time
}

// New returns the component; it implements component.Component.
func New(cfg Config) *Snapshots {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Snapshots{
		cfg: cfg, log: logrus.WithField("component", "snapshots"),
		failed: map[string]File{}, changed: make(chan struct{}, 1), now: cfg.Now,
	}
}

// Name implements component.Component.
func (*Snapshots) Name() string { return "snapshots" }

// Run implements component.Component. At rest it waits for
// the next time of the schedule only.
func (s *Snapshots) Run(ctx context.Context, ready func()) error {
	if err := s.connect(); err != nil {
		return err
	}
	s.removeTemporary()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.tellAPI(ctx) })
	running.Go(func() { s.keepSchedule(ctx) })
	s.change()
	ready()
	<-ctx.Done()
	return nil
}

// folder is where snapshots are on this host.
func (c *Config) folder() string {
	if c.Settings.Dir != "" {
		return c.Settings.Dir
	}
	return c.Dir.Snapshots()
}

// keepSchedule saves at the times of the schedule, until ctx is done.
func (s *Snapshots) keepSchedule(ctx context.Context) {
	if s.cfg.Settings.Disabled || s.cfg.Elsewhere != nil {
		return
	}
	schedule, err := cron.ParseStandard(s.cfg.Settings.ScheduleCron)
	if err != nil { // config has checked it
		s.log.Errorf("No snapshots are saved by schedule: %v", err)
		return
	}
	for {
		next := schedule.Next(s.now())
		if next.IsZero() { // such as February 30
			return
		}
		timer := time.NewTimer(next.Sub(s.now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		// save and prune log what fails. Room is made also while S3 is away.
		if file, _ := s.save(ctx, Scheduled); file != nil {
			_, _ = s.prune(ctx, Scheduled, s.cfg.Settings.Retention)
		}
	}
}

// save saves a snapshot to the folder and, if there is S3, there too. If only
// the latter failed it returns the file and an error.
func (s *Snapshots) save(ctx context.Context, name string) (*File, error) {
	if s.cfg.Elsewhere != nil {
		return nil, s.cfg.Elsewhere
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	began := s.now()
	file, err := s.saveHere(ctx, name)
	if err != nil {
		s.note(ctx, failure{place: "file", name: fileName(name, s.cfg.NodeName, began), err: err})
		return nil, fmt.Errorf("save snapshot: %w", err)
	}
	delete(s.failed, "file")
	s.log.Infof("Saved snapshot %s, %d bytes, in %.1fs", file.Name, file.Size, s.now().Sub(began).Seconds())
	s.event(ctx, eventSaved, "Saved "+file.Location)
	if !s.cfg.Settings.S3 {
		return file, nil
	}
	if unsent, err := s.send(ctx, file.Name); err != nil {
		s.note(ctx, failure{place: "s3", name: unsent, err: err})
		return file, fmt.Errorf("snapshot %s is on this host, but not in S3, where the next save sends it too: %w", unsent, err)
	}
	delete(s.failed, "s3")
	return file, nil
}

// saveHere saves a snapshot to the folder.
func (s *Snapshots) saveHere(ctx context.Context, name string) (_ *File, err error) {
	folder := s.cfg.folder()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of snapshots: %w", datadir.Explain(err))
	}
	at := s.now()
	path := filepath.Join(folder, fileName(name, s.cfg.NodeName, at))
	for exists(path) { // two in a second
		at = at.Add(time.Second)
		path = filepath.Join(folder, fileName(name, s.cfg.NodeName, at))
	}
	token, err := keptToken(s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	secrets, err := readSecrets(s.cfg.Dir, s.cfg.Encryption)
	if err != nil {
		return nil, err
	}
	m := &Manifest{
		Format: formatVersion, Kedge: version.Version, Kubernetes: strings.SplitN(version.Version, "+", 2)[0],
		Datastore: s.cfg.Store.Kind(), Name: name, Node: s.cfg.NodeName, Time: at.UTC().Truncate(time.Second),
		Secrets: secrets.sums(),
	}
	if m.Sealed, err = join.Seal(token, secrets); err != nil {
		return nil, err
	}
	content := temporaryFile(path + ".content")
	defer removeDatabase(content)
	if m.Revision, err = s.cfg.Store.Save(ctx, content); err != nil {
		return nil, err
	}
	if err := write(path, content, m); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", datadir.Explain(err))
	}
	return describe(path)
}

// removeDatabase removes a file, and what a database leaves beside it.
func removeDatabase(file string) {
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(file + end)
	}
}

// removeTemporary removes what was being written when kedge was killed.
func (s *Snapshots) removeTemporary() {
	left, _ := filepath.Glob(filepath.Join(s.cfg.folder(), ".*-"+s.cfg.NodeName+"-*"+suffix+"*"+temporarySuffix+"*"))
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			s.log.Warnf("Cannot remove what a save that was interrupted has left: %v", err)
		}
	}
}

// list returns all snapshots, the newest first. Of a place that cannot be asked
// the error tells; the others are returned all the same.
func (s *Snapshots) list(ctx context.Context) ([]File, error) {
	files, err := s.cfg.listFolder()
	if s.cfg.Settings.S3 {
		remote, remoteErr := s.listS3(ctx)
		files, err = append(files, remote...), errors.Join(err, remoteErr)
	}
	slices.SortFunc(files, newestFirst)
	return files, err
}

// delete deletes snapshots by name, wherever they are.
func (s *Snapshots) delete(ctx context.Context, names []string) ([]File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	var found []File
	var faults []error
	for _, name := range names {
		before := len(found)
		for _, f := range files {
			if f.Name == name || f.Name == name+suffix {
				found = append(found, f)
			}
		}
		if len(found) == before {
			faults = append(faults, fmt.Errorf("there is no snapshot %s; `kedge snapshot list` lists them", name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s.remove(ctx, found)
}

// prune deletes the older snapshots of this node, of each name that it has or
// of one, in each place, but as many as retention says.
func (s *Snapshots) prune(ctx context.Context, name string, retention int) ([]File, error) {
	if retention < 1 {
		return nil, fmt.Errorf("at least one snapshot is to be kept, not %d: `kedge snapshot delete` deletes single ones", retention)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	files, listErr := s.list(ctx)
	byPlace := map[string][]File{}
	for _, f := range files {
		place, _, _ := strings.Cut(f.Location, ":")
		byPlace[place] = append(byPlace[place], f)
	}
	var old []File
	for _, same := range byPlace {
		old = append(old, surplus(same, s.cfg.NodeName, name, retention)...)
	}
	removed, err := s.remove(ctx, old)
	if err = errors.Join(listErr, err); err != nil {
		s.log.Errorf("Old snapshots were not all deleted: %v", err)
	}
	return removed, err
}

// remove deletes files, and returns those that are gone.
func (s *Snapshots) remove(ctx context.Context, files []File) (removed []File, err error) {
	if len(files) > 0 {
		defer s.change()
	}
	for _, f := range files {
		fault := s.removeOne(ctx, f)
		if fault != nil {
			err = errors.Join(err, fmt.Errorf("delete %s: %w", f.Location, fault))
			continue
		}
		s.log.Infof("Deleted snapshot %s", f.Location)
		s.event(ctx, eventDeleted, "Deleted "+f.Location)
		removed = append(removed, f)
	}
	return removed, err
}

func (s *Snapshots) removeOne(ctx context.Context, f File) error {
	if strings.HasPrefix(f.Location, "s3:") {
		return s.removeS3(ctx, f.Name)
	}
	return os.Remove(filepath.Join(s.cfg.folder(), f.Name))
}

// failure is a save that came to nothing, or an upload.
type failure struct {
	place, name string
	err         error
}

// note remembers, logs and tells that a snapshot failed, unless kedge stops or
// the user did not wait for it.
func (s *Snapshots) note(ctx context.Context, f failure) {
	if ctx.Err() != nil {
		s.log.Infof("Snapshot %s was not waited for", f.name)
		return
	}
	s.log.Errorf("Snapshot %s failed: %v", f.name, f.err)
	location := "file://" + filepath.Join(s.cfg.folder(), f.name)
	if f.place == "s3" {
		location = s.locationS3(f.name)
	}
	s.failed[f.place] = File{Name: f.name, Node: s.cfg.NodeName, Location: location, Created: s.now(), Error: f.err.Error()}
	s.event(ctx, eventFailed, f.name+": "+f.err.Error())
}
