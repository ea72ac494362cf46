// Package backup writes every change of the cluster's objects, and the files that a new server needs, to a place outside: a
// bucket or a folder. It follows the datastore by a watch of etcd's API, as any client can. Nothing that it keeps is on
// the disk of the server: where it has to go on is in the place itself.
//
// The server package runs a Backup on one server at a time. Package chain has the form of the log, package place the
// places, package records the content, and package rebuild reads all of it.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// The Secret in kube-system has what a server needs to write.
const (
	SecretName = "kedge-backup"
	secretKey  = "writer.json"
)

// Config is what New needs.
type Config struct {
	// Client calls the API as system:kedge:backup.
	Client *rest.Config
	// Elected runs loops while this server is the one that writes, until ctx ends. It calls ready once.
	Elected func(ctx context.Context, loops Loops, ready func()) error
	// Open opens the place. Its settings may be in the cluster.
	Open func(ctx context.Context, cluster kubernetes.Interface) (place.Place, error)
	// Location is the place's URL, for people.
	Location string
	// Interval is how long after a change it is written at the latest, as long as the place answers.
	Interval time.Duration
	Keep     volumes.Keep
	// Verify is how often the backup is read back and compared with the datastore, or 0. Folder is where the state is kept meanwhile.
	Verify time.Duration
	Folder string
	// Connect returns a client of the datastore, which the caller closes.
	Connect func() (*clientv3.Client, error)
	// Leases is true if a lease of the datastore is a number, as etcd's, and not a duration in seconds, as kine's.
	Leases bool
	// Inherited is the file in which a restore leaves the key for the cluster.
	Inherited string
	// Keys are those that are in the backup besides objects.
	Keys []string
	// Files returns the files of this server.
	Files func() ([]records.File, error)
	// Node is the server's node, whose Events tell of faults.
	Node string
	// Metrics takes the metrics. It may be nil.
	Metrics prometheus.Registerer
	// Now returns the time, also where the system's clock is not set.
	Now func() time.Time
}

// Backup writes. Its methods may be called at any time.
type Backup struct {
	cfg Config
	log *logrus.Entry
	// wake brings the next attempt.
	wake loop.Changes
	// verifyAfter is when the next verification may begin. Only run uses it.
	verifyAfter time.Time

	mu     sync.Mutex
	status Status
}

// Status is how the backup fares, for `kedge status` and metrics.
type Status struct {
	Location string `json:"location"`
	// Newest is when the newest entry was written. It is zero if this server has not looked yet.
	Newest time.Time `json:"newest,omitzero"`
	// Revision is the newest one that the backup has.
	Revision int64 `json:"revision,omitempty"`
	// Waiting is the time of the oldest change that is not written yet. It is zero if all are.
	Waiting time.Time `json:"waiting,omitzero"`
	// Base is when the last whole state was written, and Size is how large it and the changes since are, in bytes.
	Base time.Time `json:"base,omitzero"`
	Size int64     `json:"sizeBytes,omitempty"`
	// Verified is when the backup was last read and found to have the state of the cluster. It is zero if this server has not done so.
	Verified time.Time `json:"verified,omitzero"`
	// Differs says that the backup did not have the state of the cluster, or could not be read. It is empty if the last verification held.
	Differs string `json:"differs,omitempty"`
	// Fault says why nothing is written, and what to do. It is empty if the backup works.
	Fault string `json:"fault,omitempty"`
}

// New returns a Backup.
func New(cfg Config) *Backup {
	b := &Backup{cfg: cfg, log: logrus.WithField("component", "backup"), wake: loop.NewChanges(), status: Status{Location: cfg.Location}}
	b.register()
	return b
}

// Status returns how the backup fares.
func (b *Backup) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// change changes the status.
func (b *Backup) change(do func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do(&b.status)
}

// Loops are what runs on one server at a time: election.Loops.
type Loops interface {
	Lead(ctx context.Context, ready func()) error
}

// Name implements component.Component.
func (*Backup) Name() string { return "backup" }

// Run implements component.Component.
func (b *Backup) Run(ctx context.Context, ready func()) error {
	cluster, err := b.cluster()
	if err != nil {
		return err
	}
	if err := (loop.Loop{Log: b.log}).Until(ctx, func(ctx context.Context) error { return b.inherit(ctx, cluster) }); err != nil {
		return nil // kedge stops
	}
	return b.cfg.Elected(ctx, b, ready)
}

// cluster returns a client of the API.
func (b *Backup) cluster() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(b.cfg.Client)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// Lead implements Loops.
func (b *Backup) Lead(ctx context.Context, ready func()) error {
	cluster, err := b.cluster()
	if err != nil {
		return err
	}
	ready()
	b.run(ctx, cluster)
	return nil
}

// run writes until ctx ends. It writes what is left, and returns.
func (b *Backup) run(ctx context.Context, cluster kubernetes.Interface) {
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: b.cfg.Node}
	recorder := events.NewRecorder(ctx, cluster, "kedge-backup", b.cfg.Node)
	again := loop.Loop{Log: b.log, Wake: b.wake, Meanwhile: "changes are not in the backup"}
	again.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		err := b.session(ctx, cluster)
		if ctx.Err() == nil && err != nil && b.Status().Fault != err.Error() {
			b.change(func(s *Status) { s.Fault = err.Error() })
			recorder.Event(node, corev1.EventTypeWarning, "BackupFailed", events.Message(err.Error()))
		}
		return loop.Next{}, err
	})
}

// Volumes opens the store of the contents of volumes.
func (b *Backup) Volumes(ctx context.Context, cluster kubernetes.Interface) (*volumes.Store, error) {
	writer, err := readWriter(ctx, cluster)
	if err != nil {
		return nil, err
	}
	at, err := b.cfg.Open(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return volumes.New(at, writer)
}

// session is the time in which one connection to the datastore and one view of the place hold.
type session struct {
	*Backup
	cluster kubernetes.Interface
	client  *clientv3.Client
	chain   *chain.Chain
	writer  *chain.Writer
	// recipients can read what is written. own is one of them, and is only in memory.
	recipients []age.Recipient
	own        *age.X25519Identity
	// foreign is the number of the newest entry that other servers, or earlier sessions, have written.
	foreign int64
	// verified is when the backup was last verified, and verifying is the verification that runs, or nil. It is one of beside.
	verified  time.Time
	verifying *verification
	beside    sync.WaitGroup
	// tail is the newest entry. It is nil if there is none.
	tail *chain.Entry
	term int64
	// files are those that are in the backup, each with what it is.
	files map[string]fingerprint
	// lifetimes are those of leases, in seconds.
	lifetimes map[int64]int64
}

// session writes until something fails.
func (b *Backup) session(ctx context.Context, cluster kubernetes.Interface) error {
	writer, verified, err := readSecret(ctx, cluster)
	if err != nil {
		return err
	}
	client, err := b.cfg.Connect()
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer client.Close()
	s := &session{Backup: b, cluster: cluster, client: client, writer: writer, verified: verified, files: map[string]fingerprint{}, lifetimes: map[int64]int64{}}
	ctx, stop := context.WithCancel(ctx)
	defer s.beside.Wait()
	defer stop()
	if err := s.begin(ctx); err != nil {
		return err
	}
	for {
		if err := s.turn(ctx); err != nil {
			return err
		}
	}
}

// errNoKey says that the user has to make a key.
var errNoKey = errors.New("there is no recovery key yet, so nothing is written to the backup: run `kedge backup key` on a server, and keep what it prints in a safe place")

// readWriter returns what the cluster keeps in order to write.
func readWriter(ctx context.Context, cluster kubernetes.Interface) (*chain.Writer, error) {
	writer, _, err := readSecret(ctx, cluster)
	return writer, err
}

// readSecret also returns when the backup was last verified.
func readSecret(ctx context.Context, cluster kubernetes.Interface) (*chain.Writer, time.Time, error) {
	secret, err := cluster.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, time.Time{}, errNoKey
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the key of the backup: %w", err)
	}
	var w chain.Writer
	if err := json.Unmarshal(secret.Data[secretKey], &w); err != nil {
		return nil, time.Time{}, fmt.Errorf("read Secret %s in %s: %w", SecretName, metav1.NamespaceSystem, err)
	}
	verified, _ := time.Parse(time.RFC3339, secret.Annotations[verifiedAnnotation]) // without it, the backup is verified now
	return &w, verified, nil
}

// begin looks where the log ends.
func (s *session) begin(ctx context.Context) error {
	at, err := s.cfg.Open(ctx, s.cluster)
	if err != nil {
		return err
	}
	if s.chain, err = chain.Open(ctx, at, s.writer.Appointment.Root); err != nil {
		return err
	}
	if err := s.stillAppointed(); err != nil {
		return err
	}
	if s.tail, err = s.chain.Tail(ctx); err != nil {
		return err
	}
	if s.recipients, err = s.writer.Recipients(); err != nil {
		return err
	}
	if s.cfg.Verify > 0 {
		if s.own, err = age.GenerateX25519Identity(); err != nil {
			return fmt.Errorf("make key to verify the backup: %w", err)
		}
		s.recipients = append(s.recipients, s.own.Recipient())
	}
	current, err := s.current(ctx)
	if err != nil {
		return err
	}
	s.term = 1
	if s.tail != nil {
		s.term, s.foreign = s.tail.Term+1, s.tail.Number
		if s.tail.To > current {
			return fmt.Errorf("the backup has revision %d, and this cluster is at %d: another machine has continued this cluster. "+
				"If this one is to continue, set backup to another folder", s.tail.To, current)
		}
	}
	s.wrote()
	s.change(func(status *Status) { status.Verified = s.verified })
	return nil
}

// stillAppointed fails if the cluster was restored elsewhere since.
func (s *session) stillAppointed() error {
	all := s.chain.Appointments()
	own := s.writer.Appointment
	switch {
	case len(all) < own.Number:
		return fmt.Errorf("%w: it has nothing of this cluster", place.ErrAbsent)
	case len(all) > own.Number:
		return fmt.Errorf("this cluster was restored on another machine at %s, and that one writes the backup now. "+
			"Turn off this machine. If it is to continue on its own, set backup to another folder", all[own.Number].Time.Format(time.RFC3339))
	case !all[own.Number-1].Key.Equal(own.Key):
		return errors.New("the backup has another writer than this cluster: set backup to another folder")
	}
	return nil
}

// current returns the newest revision of the datastore.
func (s *session) current(ctx context.Context) (int64, error) {
	answer, err := s.client.Get(ctx, prefix, clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("ask the datastore for its revision: %w", err)
	}
	return answer.Header.Revision, nil
}

// wrote tells the status what the tail says.
func (s *session) wrote() {
	s.change(func(status *Status) {
		status.Fault, status.Waiting = "", time.Time{}
		if s.tail == nil {
			return
		}
		status.Newest, status.Revision = s.tail.Time, max(s.tail.To, s.tail.Revision)
		if base := s.tail.Base(); base != nil {
			status.Base, status.Size = base.Time, base.Size+base.Since
		}
	})
}

// append adds an entry to the log.
func (s *session) append(ctx context.Context, e chain.Entry, content []byte) error {
	e.Term, e.Time = s.term, s.cfg.Now().UTC()
	if s.tail != nil && e.Time.Before(s.tail.Time) {
		e.Time = s.tail.Time // the clock was wrong, or is
	}
	tail, err := s.chain.Append(ctx, s.writer, s.tail, e, content)
	if err != nil {
		return fmt.Errorf("write to the backup: %w", err)
	}
	s.tail = tail
	s.wrote()
	return nil
}

// turn waits for changes and writes them, or writes a base if it is time for one.
func (s *session) turn(ctx context.Context) error {
	select {
	case <-s.verificationEnds():
		if ctx.Err() == nil { // else kedge stops, and the last changes are to be written
			return s.verdict(ctx)
		}
	default:
	}
	if s.baseIsDue() {
		return s.writeBase(ctx, false)
	}
	if s.verificationIsDue() {
		return s.verify(ctx)
	}
	batch, err := s.collect(ctx)
	if errors.Is(err, errCompacted) {
		s.log.Infof("The datastore has compacted changes that the backup does not have. All objects are written again, and the states between are lost")
		return s.writeBase(ctx, true)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // kedge stops
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastPatience)
		defer cancel()
		return errors.Join(s.write(ctx, batch), context.Canceled)
	}
	return s.write(ctx, batch)
}

// lastPatience is how long writing the last changes may take when kedge stops, or when another server is elected.
const lastPatience = 2 * time.Second

// write writes a batch.
func (s *session) write(ctx context.Context, b *batch) error {
	if err := s.addFiles(b); err != nil {
		return err
	}
	if len(b.content) == 0 {
		return nil
	}
	sealed, err := chain.Seal(b.content, s.recipients...)
	if err != nil {
		return err
	}
	if err := s.append(ctx, chain.Entry{Kind: chain.Changes, From: b.from, To: b.to}, sealed); err != nil {
		return err
	}
	s.remember(b.files)
	return nil
}
