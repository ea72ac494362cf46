package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/rebuild"
)

// verifiedAnnotation is on the Secret of the backup. It says when the backup was last found to have the state of the cluster.
const verifiedAnnotation = "kedge.dev/verified"

// verificationIsDue tells whether the backup has not been read for too long.
func (s *session) verificationIsDue() bool {
	now := s.cfg.Now()
	return s.cfg.Verify > 0 && s.verifying == nil && now.Sub(s.verified) >= s.cfg.Verify && !now.Before(s.verifyAfter)
}

// verifyAgain is how long after a verification the next one begins at the earliest. Each writes all objects, so a place that cannot be read must not fill up.
const verifyAgain = time.Hour

// verification is a comparison of the backup with the datastore. It runs beside the session, so that changes are written meanwhile.
type verification struct {
	done chan struct{} // closed when the others are set
	// differ are the keys of objects that the backup has otherwise than the datastore.
	differ []string
	err    error
}

// verify begins to read the backup back from the place, and to compare it with the datastore. This server can read only what it has written since its
// start: its files are also encrypted to a key that is in its memory alone. So it begins with a new base.
func (s *session) verify(ctx context.Context) error {
	s.verifyAfter = s.cfg.Now().Add(verifyAgain)
	if s.tail.Base().Number <= s.foreign {
		if err := s.writeBase(ctx, false); err != nil {
			return err
		}
	}
	v := &verification{done: make(chan struct{})}
	s.verifying = v
	s.beside.Go(func() {
		defer close(v.done)
		v.differ, v.err = s.compare(ctx)
	})
	return nil
}

// verdict takes in what a verification has found.
func (s *session) verdict(ctx context.Context) error {
	differ, err := s.verifying.differ, s.verifying.err
	s.verifying = nil
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil // it is tried again with a newer state
	}
	if err != nil {
		err = fmt.Errorf("read the backup to verify it: %w", err)
		s.change(func(status *Status) { status.Differs = err.Error() + ". It is tried again in an hour" })
		return err
	}
	if len(differ) == 0 {
		s.verified = s.cfg.Now()
		s.change(func(status *Status) { status.Verified, status.Differs = s.verified, "" })
		return s.noteVerified(ctx)
	}
	text := fmt.Sprintf("the backup does not have the cluster's state: %d objects differ, such as %s. All objects are written to it again. Save a snapshot, and report this fault of kedge", len(differ), differ[0])
	s.log.Error(strings.ToUpper(text[:1]) + text[1:])
	s.change(func(status *Status) { status.Differs = text })
	return s.writeBase(ctx, false)
}

// verificationEnds returns a channel that is closed when the verification that runs has ended. It is nil if none runs.
func (s *session) verificationEnds() <-chan struct{} {
	if s.verifying == nil {
		return nil
	}
	return s.verifying.done
}

// noteVerified remembers the time in the cluster, for the next start.
func (s *session) noteVerified(ctx context.Context) error {
	secrets := s.cluster.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err == nil {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, verifiedAnnotation, s.verified.UTC().Format(time.RFC3339))
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("note that the backup was verified: %w", err)
	}
	return nil
}

// compare returns the keys that the newest state of the backup has in another version than the datastore had at that revision.
func (s *session) compare(ctx context.Context) (differ []string, err error) {
	log := rebuild.Log{Chain: s.chain, Open: func(sealed []byte) ([]byte, error) { return chain.Unseal(sealed, s.own) }}
	point, err := log.Find(ctx, rebuild.At{})
	if err != nil {
		return nil, err
	}
	state, err := log.Load(ctx, point, s.cfg.Folder, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	has := map[string]objectVersion{}
	_, _, err = state.Export(ctx, func(event *mvccpb.Event) error {
		if !bytes.HasPrefix(event.Kv.Key, []byte(leases)) { // their renewals are not in the backup
			has[string(event.Kv.Key)] = versionOf(event.Kv)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	_, err = s.eachObject(ctx, state.Revision, func(kv *mvccpb.KeyValue) error {
		if bytes.HasPrefix(kv.Key, []byte(leases)) {
			return nil
		}
		if has[string(kv.Key)] != versionOf(kv) {
			differ = append(differ, string(kv.Key))
		}
		delete(has, string(kv.Key))
		return nil
	})
	return append(differ, slices.Sorted(maps.Keys(has))...), err
}

// objectVersion tells two versions of an object apart.
type objectVersion struct {
	revision int64
	sum      [sha256.Size]byte
}

func versionOf(kv *mvccpb.KeyValue) objectVersion {
	return objectVersion{kv.ModRevision, sha256.Sum256(kv.Value)}
}

// eachObject calls each with what belongs to the backup, as of a revision, or as of now if it is 0. It returns the revision.
func (s *session) eachObject(ctx context.Context, revision int64, each func(*mvccpb.KeyValue) error) (int64, error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		if err != nil {
			return 0, fmt.Errorf("read objects for the backup: %w", err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			if !s.belongs(kv.Key) {
				continue
			}
			if err := each(kv); err != nil {
				return 0, err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return revision, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
