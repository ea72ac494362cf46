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
	"github.com/kedge-dev/kedge/internal/datastore/bucket"
)

// schemeFile begins a File's Location, or bucket.Scheme does.
const schemeFile = "file://"

// A restore first makes everything in the folder Restoring, which changes nothing
// that is in use, and then moves it into place. A journal records the progress:
//
//	preparing   the data are the old ones; the prepared files are thrown away
//	committed   the data are the snapshot's once all moves are done; the next
//	            restore or start completes the moves
//	no journal  nothing is unfinished
type journal struct {
	State    string `json:"state"`
	Snapshot string `json:"snapshot"`
	// Datastore is the kind of the datastore that has to commit.
	Datastore string `json:"datastore"`
	// Began is the time of the start, in seconds since 1970. The folder of the
	// old data is named after it.
	Began int64 `json:"began"`
	// Others is Config.Others, for the process that completes the restore.
	Others string `json:"others,omitempty"`
}

const (
	statePreparing = "preparing"
	stateCommitted = "committed"
)

// bump is how far a restored datastore's revisions begin above all revisions that
// are known to have been handed out. etcd's documentation on disaster recovery
// recommends this number. firstRevision adds one more for each millisecond since
// the snapshot. The old data may be lost, or may have been restored from the same
// snapshot. Then nobody knows which revisions they handed out, but no datastore
// hands out that many.
const bump = 1_000_000_000

// firstRevision returns the revision above which the restored datastore
// continues. last is the last revision that the present data may have handed out.
func firstRevision(m *Manifest, last int64, now time.Time) int64 {
	return max(m.Revision, last) + bump + max(0, now.Sub(m.Time).Milliseconds())
}

// Restored describes a completed restore.
type Restored struct {
	Manifest
	// Path is the snapshot's path or name. Replaced says where the earlier data
	// are, and Others what to do on the other servers.
	Path, Replaced, Others string
	// Authorities is true if the certificate authorities and the token were
	// replaced too.
	Authorities bool
}

// Restore replaces what a server has stored by a snapshot. file is a path, or the
// name of a snapshot in the snapshot folder or in S3. token is the token that the
// server had when the snapshot was saved. It may be empty if the server still has
// that token or the same authorities. Restore fails if the server runs; it holds
// the lock of the data directory.
//
// If Restore is interrupted, the data are either the old ones or the snapshot's.
// The next start or restore logs which.
func Restore(ctx context.Context, cfg Config, file, token string) (_ *Restored, err error) {
	if cfg.Elsewhere != nil {
		return nil, cfg.Elsewhere
	}
	lock, err := cfg.Dir.Lock()
	if err != nil {
		return nil, fmt.Errorf("restore works only while the server is stopped: %w", err)
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

// Resume completes a restore that was interrupted, or throws it away, and logs
// which. It is called before anything uses the stored data. store is nil if kedge
// cannot restore this datastore.
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
		return fmt.Errorf("read %s, the journal of a restore: %w", dir.Restore(), err)
	}
	if j.State != stateCommitted {
		logrus.Warnf("A restore of snapshot %s was interrupted before it changed anything: the data are the earlier ones", j.Snapshot)
		return j.end(dir)
	}
	if store == nil || store.Kind() != j.Datastore {
		return fmt.Errorf("a restore of snapshot %s to a datastore of the kind %s was interrupted: "+
			"start kedge with that datastore%s, so that the restore is completed", j.Snapshot, j.Datastore, settings[j.Datastore])
	}
	if err := j.complete(ctx, dir, store); err != nil {
		return err
	}
	logrus.Warn(strings.TrimSpace(fmt.Sprintf("A restore of snapshot %s that was interrupted has been completed: the data are the snapshot's, and the earlier data are in %s. %s",
		j.Snapshot, store.Kept(dir.Replaced(j.Began)), j.Others)))
	return nil
}

// begin writes the journal and makes an empty folder.
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

// complete moves everything that was prepared into place. Each step may already
// have been done by an interrupted call.
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
	// New authorities that were prepared to replace the earlier ones do not fit
	// the restored ones.
	if err := os.RemoveAll(dir.NextServerTLS()); err != nil {
		return fmt.Errorf("restore: %w", datadir.Explain(err))
	}
	if err := store.Commit(ctx, folder, kept); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	_ = os.Remove(kept) // succeeds only if it is empty: a database keeps the earlier data in itself
	return j.end(dir)
}

// end removes what is no longer needed. The journal goes last.
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

// prepare makes and checks everything that is to be moved into place.
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
		// The present data may be damaged, which may be the reason for the
		// restore.
		logrus.Warnf("The stored data cannot be read. They are kept, and are replaced by the snapshot: %v", err)
		last = 0
	}
	// A fetched snapshot has been unpacked by now. Removing it leaves room on a
	// small disk.
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

// find returns the path of a snapshot. If the snapshot is in S3, find fetches it
// to folder. file is a path, a name, or a File's Location.
func find(ctx context.Context, cfg Config, file, folder string) (string, error) {
	if strings.HasPrefix(file, bucket.Scheme) {
		return fetchLocation(ctx, cfg, file, folder)
	}
	file = strings.TrimPrefix(file, schemeFile)
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
		return "", fmt.Errorf("there is no snapshot %s on this host. Run `kedge snapshot list` for the list", file)
	}
	b, err := New(cfg).s3(ctx)
	if err != nil {
		return "", fmt.Errorf("there is no snapshot %s on this host (run `kedge snapshot list` for the list), and S3 cannot be asked: %w", file, err)
	}
	target := filepath.Join(folder, strings.TrimSuffix(file, suffix)+suffix)
	return target, fetch(ctx, b, filepath.Base(target), target)
}

// fetchLocation fetches the snapshot at a Location in S3.
func fetchLocation(ctx context.Context, cfg Config, location, folder string) (string, error) {
	if !cfg.Settings.S3 {
		return "", fmt.Errorf("snapshot %s is in S3, which is not configured here: set s3 and the settings of the bucket, or give a file", location)
	}
	b, err := New(cfg).s3(ctx)
	if err != nil {
		return "", fmt.Errorf("snapshot %s is in S3, which cannot be asked: %w", location, err)
	}
	name := filepath.Base(location)
	if own := b.Location(name); own != location {
		return "", fmt.Errorf("snapshot %s is not in the bucket and folder of this server, where it would be %s: set s3-bucket and s3-folder", location, own)
	}
	target := filepath.Join(folder, name)
	return target, fetch(ctx, b, name, target)
}

// prepareSecrets makes sure that the server will have the secrets of the snapshot.
// If the server's own authorities differ, it unpacks those of the snapshot into
// folder and returns true.
func prepareSecrets(cfg Config, r *reader, folder, token string) (replaces bool, err error) {
	own, err := readSecrets(cfg.Dir, cfg.Encryption)
	if err != nil {
		return false, err
	}
	sums := own.sums()
	if _, encrypted := r.Secrets[encryptionName]; encrypted && cfg.Encryption == "" {
		return false, errors.New("the snapshot has encrypted objects, and this server has no keys for them: " +
			"set kube-apiserver-arg: encryption-provider-config=PATH, as it was when the snapshot was saved; restore writes the file if it does not exist")
	}
	_, hasKeys := own[encryptionName]
	wantsKeys := r.Secrets[encryptionName] != "" && !hasKeys
	if hasKeys && r.Secrets[encryptionName] != "" && r.Secrets[encryptionName] != sums[encryptionName] {
		logrus.Warnf("%s has changed since the snapshot was saved. It is not replaced, and must still contain the keys of that time", cfg.Encryption)
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
		return false, fmt.Errorf("the authorities of this server are not those of the snapshot, and %w: set --token to the token that the server had when the snapshot was saved", err)
	}
	sealed := secrets(opened)
	if !maps.Equal(sealed.sums(), r.Secrets) {
		return false, damaged(r.path, "has secrets that do not match its manifest")
	}
	if wantsKeys {
		// The file may be written before the restore is certain: the keys in it
		// have no other use.
		if err := datadir.WriteFile(cfg.Encryption, sealed[encryptionName], 0o600); err != nil {
			return false, err
		}
	}
	if !replaces {
		return false, nil
	}
	return true, sealed.unpack(folder, secret)
}

// bootstrapSecret returns the secret of the given token, or of the server's own
// token if none is given.
func bootstrapSecret(cfg Config, token string) (string, error) {
	if token != "" {
		return join.ServerSecret(token)
	}
	secret, err := keptToken(cfg.Dir)
	if err == nil && secret == "" {
		err = errors.New("the snapshot's certificate authorities are sealed with the server's token, and this host has no token: " +
			"set --token to the token that the server had when the snapshot was saved")
	}
	return secret, err
}

// Advice says what to do after a restore.
func (r *Restored) Advice() string {
	lines := []string{
		fmt.Sprintf("Restored %s: the cluster as node %s saved it on %s, at revision %d.", r.Path, r.Node, r.Time.Format(time.RFC3339), r.Revision),
		fmt.Sprintf("The earlier data are in %s: remove them when you no longer need them.", r.Replaced),
	}
	if r.Authorities {
		lines = append(lines, "The certificate authorities and the token are the snapshot's too. Nodes that know other authorities must join again.")
	}
	lines = append(lines, "Start the server now. Agents find it by themselves. Restart kedge on agents that joined after the snapshot was saved.")
	if r.Others != "" {
		lines = append(lines, r.Others)
	}
	return strings.Join(lines, "\n")
}
