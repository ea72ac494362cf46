// Package snapshot saves a server's datastore to files, and lists, prunes and
// restores these files. Commands, schedule, format and places are the same for
// all kinds of datastores. The server package runs a Snapshots beside the
// datastore. The commands ask it through localapi (ask.go), and call Restore
// themselves on a server that does not run.
//
// file.go has the format, secrets.go what a snapshot contains besides the
// datastore, folder.go and s3.go the places, restore.go the restore, and
// objects.go what the API shows.
package snapshot

import (
	"cmp"
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
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// Config is what New needs.
type Config struct {
	Dir      datadir.Dir
	Settings config.Snapshots
	// Encryption is the path of the API server's encryption-provider-config, or
	// empty if it has none.
	Encryption string
	NodeName   string
	Store      datastore.Snapshotter
	// Elsewhere is not nil if the API's objects are not in Store. It then says
	// where they are and who saves them, and nothing is saved or restored.
	Elsewhere error
	// Others says what to do on the other servers after a restore. It is empty if
	// there are none.
	Others string
	// Client calls the API as system:kedge:snapshots. It is nil if only the files
	// are listed.
	Client *rest.Config
	// Now returns the time, also where the system's clock is not set. If it is
	// nil, the system's clock is used. Names contain the time, and the oldest
	// snapshots are deleted first.
	Now func() time.Time
}

// File is one snapshot in one place.
type File struct {
	// Name is the name of the file, Node that of the server that saved it.
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Location is a URL: file:///... or s3://BUCKET/....
	Location string    `json:"location"`
	Size     int64     `json:"size"`
	Created  time.Time `json:"created"`
	// Error says why the snapshot cannot be used. It is empty if the snapshot is
	// fine.
	Error string `json:"error,omitempty"`
}

// Snapshots is the component that saves by schedule and on demand. It must run
// only while the datastore and the API run.
type Snapshots struct {
	cfg Config
	log *logrus.Entry
	// mu allows one save or deletion at a time.
	mu sync.Mutex
	// failed are the last failures by place. The next success in that place
	// removes the failure.
	failed map[string]File
	// changed has a value while the API has yet to be updated.
	changed loop.Changes
	client  kubernetes.Interface
	objects objects
	now     func() time.Time
}

// New returns the component, which implements component.Component.
func New(cfg Config) *Snapshots {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Snapshots{
		cfg: cfg, log: logrus.WithField("component", "snapshots"),
		failed: map[string]File{}, changed: loop.NewChanges(), now: cfg.Now,
	}
}

// Name implements component.Component.
func (*Snapshots) Name() string { return "snapshots" }

// Run implements component.Component. At rest it only waits for the next time of
// the schedule.
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

// folder returns the folder of the snapshots on this host.
func (c *Config) folder() string {
	return cmp.Or(c.Settings.Dir, c.Dir.Snapshots())
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
		// save and prune log their errors. Prune runs also if only S3 failed, so
		// that the disk does not fill up.
		if file, _ := s.save(ctx, Scheduled); file != nil {
			_, _ = s.prune(ctx, Scheduled, 0)
		}
	}
}

// save saves a snapshot to the folder and, if it is configured, to S3. If only S3
// failed, it returns both the file and an error.
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
		return file, fmt.Errorf("snapshot %s is saved on this host, but could not be sent to S3. The next save will send it too: %w", unsent, err)
	}
	delete(s.failed, "s3")
	return file, nil
}

// saveHere saves a snapshot to the folder.
func (s *Snapshots) saveHere(ctx context.Context, name string) (*File, error) {
	folder := s.cfg.folder()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of snapshots: %w", datadir.Explain(err))
	}
	at := s.now()
	path := filepath.Join(folder, fileName(name, s.cfg.NodeName, at))
	for exists(path) { // two snapshots in one second
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
	err = s.cfg.pack(path, &Manifest{Kedge: version.Version, Name: name, Node: s.cfg.NodeName, Time: at}, secrets, token, func(content string) (int64, error) {
		return s.cfg.Store.Save(ctx, content)
	})
	if err != nil {
		return nil, err
	}
	return describe(path)
}

// pack makes the snapshot at path. The manifest has the version, the name, the node and the time. save writes the content into a file, and returns its
// revision. The secrets are sealed with the token.
func (c *Config) pack(path string, m *Manifest, secrets secrets, token string, save func(content string) (int64, error)) (err error) {
	m.Format, m.Datastore, m.Time = formatVersion, c.Store.Kind(), m.Time.UTC().Truncate(time.Second)
	m.Kubernetes = strings.SplitN(m.Kedge, "+", 2)[0]
	m.Secrets = secrets.sums()
	if m.Sealed, err = join.Seal(token, secrets); err != nil {
		return err
	}
	content := temporaryFile(path + ".content")
	defer removeDatabase(content)
	if m.Revision, err = save(content); err != nil {
		return err
	}
	if err := write(path, content, m); err != nil {
		return fmt.Errorf("write snapshot: %w", datadir.Explain(err))
	}
	return nil
}

// removeDatabase removes a file and what SQLite leaves beside it.
func removeDatabase(file string) {
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(file + end)
	}
}

// removeTemporary removes the files that were being written when kedge was
// killed.
func (s *Snapshots) removeTemporary() {
	left, _ := filepath.Glob(filepath.Join(s.cfg.folder(), ".*-"+s.cfg.NodeName+"-*"+suffix+"*"+temporarySuffix+"*"))
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			s.log.Warnf("Cannot remove a file that an interrupted save left: %v", err)
		}
	}
}

// list returns all snapshots, the newest first. If a place does not answer, it
// returns the snapshots of the other place and an error.
func (s *Snapshots) list(ctx context.Context) ([]File, error) {
	files, err := s.cfg.listFolder()
	if s.cfg.Settings.S3 {
		remote, remoteErr := s.listS3(ctx)
		files, err = append(files, remote...), errors.Join(err, remoteErr)
	}
	slices.SortFunc(files, newestFirst)
	return files, err
}

// delete deletes snapshots by name in all places.
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
			if f.Name == name || f.Name == name+suffix || f.Location == name {
				found = append(found, f)
			}
		}
		if len(found) == before {
			faults = append(faults, fmt.Errorf("there is no snapshot %s. Run `kedge snapshot list` for the list", name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s.remove(ctx, found)
}

// prune deletes the older snapshots of this node in each place, and keeps as many
// of each name as retention says, or as the settings say if it is 0. If name is not
// empty, it deletes only snapshots
// of that name.
func (s *Snapshots) prune(ctx context.Context, name string, retention int) ([]File, error) {
	if retention < 0 {
		return nil, fmt.Errorf("retention must be at least 1, not %d; `kedge snapshot delete` deletes single snapshots", retention)
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
	for place, same := range byPlace {
		keep := retention
		if keep == 0 {
			keep = s.kept(ctx, place+"://")
		}
		old = append(old, surplus(same, s.cfg.NodeName, name, keep)...)
	}
	removed, err := s.remove(ctx, old)
	if err = errors.Join(listErr, err); err != nil {
		s.log.Errorf("Old snapshots were not all deleted: %v", err)
	}
	return removed, err
}

// remove deletes files and returns those that were deleted.
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

// failure is a save or an upload that failed.
type failure struct {
	place, name string
	err         error
}

// note remembers, logs and reports a failed snapshot. If kedge stops or the user
// did not wait, it only logs that.
func (s *Snapshots) note(ctx context.Context, f failure) {
	if ctx.Err() != nil {
		s.log.Infof("Snapshot %s was cancelled", f.name)
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
