package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/deletion"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// prefix begins all keys but the datastore's own.
const prefix = "/"

// maxBatch is how large a batch may become before it is written, in bytes.
const maxBatch = 4 << 20

// errCompacted says that the datastore no longer has all changes since the tail.
var errCompacted = errors.New("changes are missing in the datastore")

// batch is what one entry has.
type batch struct {
	content  []byte
	from, to int64
	files    []records.File
}

// leases are the Leases, and addresses those of API servers, which each of them writes anew.
const (
	objects   = "/registry/"
	leases    = objects + "leases/"
	addresses = objects + "masterleases/"
)

// belongs tells whether the backup has a key: the keys of objects, who has deleted one, and cfg.Keys. Each server makes the other keys itself.
func (b *Backup) belongs(key []byte) bool {
	if slices.Contains(b.cfg.Keys, string(key)) || bytes.HasPrefix(key, []byte(deletion.Prefix)) {
		return true
	}
	return bytes.HasPrefix(key, []byte(objects)) && !bytes.HasPrefix(key, []byte(addresses))
}

// renews tells whether a change renews a Lease. Its holder renews it again.
func renews(event *mvccpb.Event) bool {
	return bytes.HasPrefix(event.Kv.Key, []byte(leases)) && event.Type == mvccpb.Event_PUT && event.Kv.CreateRevision != event.Kv.ModRevision
}

// collect waits for a change, and then for as long as the interval says. If ctx or a verification ends, it returns what there is.
// No watch is open while a batch is written, so a slow place cannot fill the memory: the datastore has the
// changes meanwhile.
func (s *session) collect(ctx context.Context) (*batch, error) {
	b := &batch{from: s.tail.To, to: s.tail.To}
	// If ctx ends, what the batch has is written.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	changes := s.client.Watch(clientv3.WithRequireLeader(watching), prefix, clientv3.WithPrefix(), clientv3.WithRev(b.to+1))
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return b, nil
		case <-due:
			return b, nil
		case <-s.verificationEnds():
			return b, nil
		case answer, ok := <-changes:
			if err := answer.Err(); err != nil {
				return nil, explainWatch(err)
			}
			if !ok {
				return nil, errors.New("the datastore has ended the watch of the backup")
			}
			before := len(b.content)
			if full, err := s.take(ctx, b, answer.Events); err != nil || full {
				return b, err
			}
			if before == 0 && len(b.content) > 0 {
				due = time.After(s.cfg.Interval)
				s.change(func(status *Status) { status.Waiting = s.cfg.Now() })
			}
		}
	}
}

func explainWatch(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return errCompacted
	}
	return fmt.Errorf("watch the datastore for the backup: %w", err)
}

// take adds changes to a batch, and the moment at which they came. If the batch is full, the next one begins after the last change in it.
func (s *session) take(ctx context.Context, b *batch, events []*clientv3.Event) (full bool, err error) {
	before := len(b.content)
	for _, e := range events {
		event := (*mvccpb.Event)(e)
		b.to = max(b.to, event.Kv.ModRevision)
		if !s.belongs(event.Kv.Key) || renews(event) {
			continue
		}
		if event.Kv.Lease, err = s.lifetime(ctx, event.Kv.Lease); err != nil {
			return false, err
		}
		if b.content, err = records.AppendEvent(b.content, event); err != nil {
			return false, err
		}
		if full = len(b.content) > maxBatch; full {
			break
		}
	}
	if len(b.content) > before {
		b.content, err = records.AppendMoment(b.content, records.Moment{Time: s.cfg.Now().UTC(), Revision: b.to})
	}
	return full, err
}

// lifetime returns how long the keys of a lease live, in seconds. A lease that has ended by now lives for a second.
func (s *session) lifetime(ctx context.Context, lease int64) (int64, error) {
	if lease == 0 || !s.cfg.Leases {
		return lease, nil
	}
	if known, ok := s.lifetimes[lease]; ok {
		return known, nil
	}
	answer, err := s.client.TimeToLive(ctx, clientv3.LeaseID(lease))
	if err != nil {
		return 0, fmt.Errorf("ask the datastore for a lease: %w", err)
	}
	if len(s.lifetimes) >= maxLifetimes {
		clear(s.lifetimes)
	}
	s.lifetimes[lease] = max(1, answer.GrantedTTL)
	return s.lifetimes[lease], nil
}

// maxLifetimes bounds the memory for leases.
const maxLifetimes = 1000
