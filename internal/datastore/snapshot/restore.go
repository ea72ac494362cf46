package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// A restore makes all that is to be in folder Restoring first, which changes
// nothing that is in use, and then moves it into place. A journal says how far it
// is:
//
//	preparing   the data are as they were; what was begun is thrown away
//	committed   the data are the snapshot's as soon as all moves are done, which
//	            whoever comes next completes: a restore or a start
//	no journal  nothing is unfinished
type journal struct {
	State    string `json:"state"`
	Snapshot string `json:"snapshot"`
	// Datastore is the kind of store that is to commit.
	Datastore string `json:"datastore"`
	// Began is when, in seconds since 1970: the folder of the old data is named
	// after it.
	Began int64 `json:"began"`
	// Others is Config.Others, for whoever completes it.
	Others string `json:"others,omitempty"`
}

const (
	statePreparing = "preparing"
	stateCommitted = "committed"
)

// bump is how far above all that is known to have been handed out the revisions
// of a restored datastore go on. etcd's documentation on disaster recovery
// recommends as many. For each millisecond since the snapshot there is one more:
// where the old data are gone, or were themselves restored from the same snapshot,
// nobody knows what they had come to, but no datastore hands out so many.
const bump = 1_000_000_000

// firstRevision returns the revision above which a datastore goes on. last is the
// last one that what is there now may have handed out.
func firstRevision(m *Manifest, last int64, now time.Time) int64 {
	return max(m.Revision, last) + bump + max(0, now.Sub(m.Time).Milliseconds())
}

// Restored says what a restore did.
type Restored struct {
	Manifest
	// Path is the snapshot's. Replaced says where what was there before is, and
	// Others what to do on the other servers.
	Path, Replaced, Others string
	// Authorities tells that also authorities and token were replaced.
	Authorities bool
}

// Restore replaces what a server has stored by a snapshot: a file, or the name of
// one in the folder of snapshots or in S3. token is the server's when it was
// saved, and need not be given where that is still the same, or the authorities
// are. The server must not run: its data directory is held meanwhile.
//
// Whenever it is interrupted, either the old data are there or the snapshot's;
// the next start or restore says which.
func Restore(ctx context.Context, cfg Config, file, token string) (_ *Restored, err error) {
	if cfg.Elsewhere != nil {
		return nil, cfg.Elsewhere
	}
	lock, err := cfg.Dir.Lock()
	if err != nil {
		return nil, fmt.Errorf("restore works on a server that does not run: %w", err)
	}
	defer lock.Release()
	if err := Resume(ctx, cfg.Dir, cfg.Store); err != nil {
		return nil, err
	}
	j := journal{State: statePreparing, Snapshot: file, Datastore: cfg.Store.Kind(), Began: time.Now().Unix(), Others: cfg.Others}
	if err := j.begin(cfg.Dir); err != nil {
		return nil, err
	}
	restored, err := prepare(ctx, cfg, &j, token)
	if err != nil {
		return nil, errors.Join(err, j.end(cfg.Dir))
	}
	j.State = stateCommitted
	if err := j.write(cfg.Dir); err != nil {
		return nil, err
	}
	return restored, j.complete(ctx, cfg.Dir, cfg.Store)
}

// Resume is called before anything uses what a server has stored: it completes a
// restore that was interrupted, or throws it away, and says so. store is nil if it
// is one that kedge does not restore.
func Resume(ctx context.Context, dir datadir.Dir, store datastore.Snapshotter) error {
	text, err := os.ReadFile(dir.Restore())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a restore that was interrupted: %w", err)
	}
	var j journal
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("read %s, which says how far a restore was: %w", dir.Restore(), err)
	}
	if j.State != stateCommitted {
		logrus.Warnf("A restore of snapshot %s was interrupted before it had changed anything: the data are those from before it", j.Snapshot)
		return j.end(dir)
	}
	if store == nil || store.Kind() != j.Datastore {
		return fmt.Errorf("a restore of snapshot %s to a datastore of the kind %s was interrupted: "+
			"start kedge with that one%s, so that it is completed, and with no other", j.Snapshot, j.Datastore, settings[j.Datastore])
	}
	if err := j.complete(ctx, dir, store); err != nil {
		return err
	}
	logrus.Warn(strings.TrimSpace(fmt.Sprintf("A restore of snapshot %s that was interrupted has been completed: the data are the snapshot's, and those from before it are in %s. %s",
		j.Snapshot, store.Kept(dir.Replaced(j.Began)), j.Others)))
	return nil
}

// begin makes the journal and an empty folder.
func (j *journal) begin(dir datadir.Dir) error {
	if err := os.MkdirAll(filepath.Dir(dir.Restore()), 0o700); err != nil {
		return fmt.Errorf("begin restore: %w", datadir.Explain(err))
	}
	if err := j.write(dir); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir.Restoring()), os.Mkdir(dir.Restoring(), 0o700)); err != nil {
		return fmt.Errorf("begin restore: %w", datadir.Explain(err))
	}
	return nil
}

func (j *journal) write(dir datadir.Dir) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("keep journal of restore: %w", err)
	}
	return datadir.WriteFile(dir.Restore(), append(text, '\n'), 0o600)
}

// complete moves all that was prepared into place. Each step is one that may have
// been done before.
func (j *journal) complete(ctx context.Context, dir datadir.Dir, store datastore.Snapshotter) error {
	folder, kept := dir.Restoring(), dir.Replaced(j.Began)
	if err := os.MkdirAll(kept, 0o700); err != nil {
		return fmt.Errorf("restore: %w", datadir.Explain(err))
	}
	for next, current := range map[string]string{"tls": dir.ServerTLS(), "token": dir.ServerToken()} {
		if err := datadir.Replace(filepath.Join(folder, next), current, filepath.Join(kept, next)); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	// What was prepared for the authorities from before is not for these.
	if err := os.RemoveAll(dir.NextServerTLS()); err != nil {
		return fmt.Errorf("restore: %w", datadir.Explain(err))
	}
	if err := store.Commit(ctx, folder, kept); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	_ = os.Remove(kept) // nothing is in it: a database keeps its own
	return j.end(dir)
}

// end removes what is no longer needed, the journal last.
func (j *journal) end(dir datadir.Dir) error {
	err := os.RemoveAll(dir.Restoring())
	if err == nil {
		err = os.Remove(dir.Restore())
	}
	if err != nil {
		return fmt.Errorf("end restore: %w", datadir.Explain(err))
	}
	return nil
}

// prepare makes and checks all that is to be moved into place.
func prepare(ctx context.Context, cfg Config, j *journal, token string) (*Restored, error) {
	folder := cfg.Dir.Restoring()
	path, err := find(ctx, cfg, j.Snapshot, folder)
	if err != nil {
		return nil, err
	}
	r, err := open(path)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.acceptable(version.Version, cfg.Store.Kind()); err != nil {
		return nil, err
	}
	authorities, err := prepareSecrets(cfg, r, folder, token)
	if err != nil {
		return nil, err
	}
	content := filepath.Join(folder, "content")
	if err := r.extract(content); err != nil {
		return nil, err
	}
	last, err := cfg.Store.LastRevision(ctx)
	if err != nil {
		// Damage may be why there is a restore.
		logrus.Warnf("What is stored now cannot be read, and is only put aside: %v", err)
		last = 0
	}
	// Room is left for it on a small disk: what was fetched has been read.
	if strings.HasPrefix(path, folder) {
		_ = os.Remove(path)
	}
	if err := cfg.Store.Prepare(ctx, content, folder, firstRevision(&r.Manifest, last, time.Now())); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	if err := datadir.SyncAll(folder); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	return &Restored{
		Manifest: r.Manifest, Path: j.Snapshot, Authorities: authorities,
		Replaced: cfg.Store.Kept(cfg.Dir.Replaced(j.Began)), Others: cfg.Others,
	}, nil
}

// find returns the path of a snapshot, and fetches it to folder if it is in S3.
func find(ctx context.Context, cfg Config, file, folder string) (string, error) {
	candidates := []string{file}
	isName := !strings.Contains(file, "/")
	if isName {
		candidates = append(candidates, filepath.Join(cfg.folder(), file), filepath.Join(cfg.folder(), file+suffix))
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	if !isName || !cfg.Settings.S3 {
		return "", fmt.Errorf("there is no snapshot %s; `kedge snapshot list` lists them", file)
	}
	b, err := New(cfg).s3(ctx)
	if err != nil {
		return "", fmt.Errorf("there is no snapshot %s on this host (`kedge snapshot list` lists them), and S3 cannot be asked: %w", file, err)
	}
	target := filepath.Join(folder, strings.TrimSuffix(file, suffix)+suffix)
	return target, b.fetch(ctx, filepath.Base(target), target)
}

// prepareSecrets sees to it that the server will have the secrets of the snapshot.
// If its own authorities are others it unpacks them into folder, and returns true.
func prepareSecrets(cfg Config, r *reader, folder, token string) (replaces bool, err error) {
	own, err := readSecrets(cfg.Dir, cfg.Encryption)
	if err != nil {
		return false, err
	}
	sums := own.sums()
	if _, encrypted := r.Secrets[encryptionName]; encrypted && cfg.Encryption == "" {
		return false, errors.New("the snapshot has encrypted objects, and this server no keys for them: " +
			"set kube-apiserver-arg: encryption-provider-config=PATH, as it was when the snapshot was saved; restore writes the file if it is not there")
	}
	_, hasKeys := own[encryptionName]
	wantsKeys := r.Secrets[encryptionName] != "" && !hasKeys
	if hasKeys && r.Secrets[encryptionName] != "" && r.Secrets[encryptionName] != sums[encryptionName] {
		logrus.Warnf("%s is not as it was when the snapshot was saved: it stays, and must have the keys of that time in it", cfg.Encryption)
	}
	for name, sum := range r.Secrets {
		replaces = replaces || name != encryptionName && sums[name] != sum
	}
	if !replaces && !wantsKeys {
		return false, nil
	}
	secret, err := bootstrapSecret(cfg, token)
	if err != nil {
		return false, err
	}
	opened, err := r.Sealed.Open(secret)
	if err != nil {
		return false, fmt.Errorf("the authorities of this server are not those of the snapshot, and %w: give the one that the server had when it was saved with --token", err)
	}
	sealed := secrets(opened)
	if !maps.Equal(sealed.sums(), r.Secrets) {
		return false, damaged(r.path, "has other secrets than it says")
	}
	if wantsKeys {
		// What it is for has no other use, so it may as well be there too soon.
		if err := datadir.WriteFile(cfg.Encryption, sealed[encryptionName], 0o600); err != nil {
			return false, err
		}
	}
	if !replaces {
		return false, nil
	}
	return true, sealed.unpack(folder, secret)
}

// bootstrapSecret returns the secret of the given token, or of the one that the
// server has.
func bootstrapSecret(cfg Config, token string) (string, error) {
	if token != "" {
		return join.ServerSecret(token)
	}
	secret, err := keptToken(cfg.Dir)
	if err == nil && secret == "" {
		err = errors.New("the snapshot's certificate authorities are sealed with the server's token, and there is none here: " +
			"give the one that the server had when the snapshot was saved with --token")
	}
	return secret, err
}

// Advice is what to do after a restore.
func (r *Restored) Advice() string {
	lines := []string{
		fmt.Sprintf("Restored %s: the cluster as node %s saved it on %s, at revision %d.", r.Path, r.Node, r.Time.Format(time.RFC3339), r.Revision),
		fmt.Sprintf("What was there before is in %s: remove it when you no longer need it.", r.Replaced),
	}
	if r.Authorities {
		lines = append(lines, "The certificate authorities and the token are the snapshot's too; nodes that knew others must join again.")
	}
	lines = append(lines, "Start the server now. Agents find it by themselves; on one that joined later than that, start kedge again.")
	if r.Others != "" {
		lines = append(lines, r.Others)
	}
	return strings.Join(lines, "\n")
}
