package rebuild

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// Version is what a key was from a revision on.
type Version struct {
	Key      string
	Revision int64
	// Time is when the backup saw the change. It is zero if the key is older than the backup.
	Time time.Time
	// Value is nil if the key was deleted.
	Value []byte
}

// History calls each with all versions of the keys that match, in the order of revisions. It reads the whole backup.
func (l *Log) History(ctx context.Context, matches func(key string) bool, each func(Version) error) error {
	numbers, err := l.Chain.Numbers(ctx)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return errEmpty
	}
	h := &history{log: l, matches: matches, each: each, present: map[string]bool{}}
	for _, number := range numbers {
		entry, sealed, err := l.Chain.Read(ctx, number)
		if err != nil {
			return err
		}
		if entry.Kind == chain.Base {
			err = h.base(ctx, entry)
		} else {
			err = h.changes(entry, sealed)
		}
		if err != nil {
			return fmt.Errorf("entry %d of the backup: %w", number, err)
		}
	}
	return nil
}

type history struct {
	log     *Log
	matches func(key string) bool
	each    func(Version) error
	// reached is the last revision up to which all is known.
	reached int64
	// present are the keys that there are.
	present map[string]bool
}

// tell tells of a version.
func (h *history) tell(v Version) error {
	if v.Value == nil {
		delete(h.present, v.Key)
	} else {
		h.present[v.Key] = true
	}
	return h.each(v)
}

// base tells of what changed while nothing was written. A base without such a gap before it has nothing new.
func (h *history) base(ctx context.Context, entry *chain.Entry) error {
	if entry.From <= h.reached && h.reached > 0 {
		return nil
	}
	gone := maps.Clone(h.present)
	for _, part := range entry.Parts {
		sealed, err := h.log.Chain.ReadPart(ctx, part)
		if err != nil {
			return err
		}
		content, err := h.log.Open(sealed)
		if err != nil {
			return err
		}
		err = records.Read(content, records.Visitor{Event: func(event *mvccpb.Event) error {
			delete(gone, string(event.Kv.Key))
			if event.Kv.ModRevision <= h.reached || !h.matches(string(event.Kv.Key)) {
				return nil
			}
			return h.tell(Version{Key: string(event.Kv.Key), Revision: event.Kv.ModRevision, Value: event.Kv.Value})
		}})
		if err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		if err := h.tell(Version{Key: key, Revision: entry.Revision, Time: entry.Time}); err != nil {
			return err
		}
	}
	h.reached = entry.Revision
	return nil
}

// changes tells of the changes of an entry. The moment at which they came stands after them.
func (h *history) changes(entry *chain.Entry, sealed []byte) error {
	content, err := h.log.Open(sealed)
	if err != nil {
		return err
	}
	var waiting []Version
	err = records.Read(content, records.Visitor{
		Event: func(event *mvccpb.Event) error {
			if event.Kv.ModRevision <= h.reached || !h.matches(string(event.Kv.Key)) {
				return nil
			}
			v := Version{Key: string(event.Kv.Key), Revision: event.Kv.ModRevision}
			if event.Type == mvccpb.Event_PUT {
				v.Value = event.Kv.Value
			}
			waiting = append(waiting, v)
			return nil
		},
		Moment: func(m records.Moment) error {
			for _, v := range waiting {
				v.Time = m.Time
				if err := h.tell(v); err != nil {
					return err
				}
			}
			waiting = nil
			return nil
		},
	})
	h.reached = max(h.reached, entry.To)
	return err
}
