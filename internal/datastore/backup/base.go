package backup

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

const (
	// smallLog is how large the changes since the last base may be at least, in bytes.
	smallLog = 4 << 20
	// pageSize is how many objects of a base are read at once.
	pageSize = 100
)

// date returns the day of a base. Each day on which anything changes begins with a base.
func date(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// baseIsDue tells whether the log has outgrown its base, or a day has begun.
func (s *session) baseIsDue() bool {
	if s.tail == nil || s.tail.Base() == nil {
		return true
	}
	base := s.tail.Base()
	return base.Since > max(base.Size, smallLog) || base.Since > 0 && date(s.cfg.Now()) != date(base.Time)
}

// writeBase writes all objects, and removes what is not kept any longer. After a gap, the datastore does not have all changes since the tail.
func (s *session) writeBase(ctx context.Context, gap bool) error {
	w := &baseWriter{session: s, name: chain.BaseName(s.tail, s.term)}
	revision, err := w.write(ctx)
	if err != nil {
		// If this removal fails, prune removes the parts later.
		_ = s.chain.RemoveParts(context.WithoutCancel(ctx), w.parts)
		return err
	}
	e := chain.Entry{Kind: chain.Base, From: revision, To: revision, Revision: revision, Parts: w.parts}
	if s.tail != nil && !gap {
		e.From, e.To = s.tail.To, s.tail.To
	}
	if err := s.append(ctx, e, nil); err != nil {
		return err
	}
	s.remember(w.files)
	s.prune(ctx)
	return nil
}

// baseWriter writes a base in parts.
type baseWriter struct {
	*session
	name    string
	content []byte
	parts   []chain.Part
	files   []records.File
}

// write writes the parts, and returns the revision at which the state was so.
func (w *baseWriter) write(ctx context.Context) (revision int64, err error) {
	if w.files, err = w.cfg.Files(); err != nil {
		return 0, fmt.Errorf("read files for the backup: %w", err)
	}
	for _, file := range w.files {
		if w.content, err = records.AppendFile(w.content, file); err != nil {
			return 0, err
		}
	}
	revision, err = w.eachObject(ctx, 0, func(kv *mvccpb.KeyValue) error { return w.add(ctx, kv) })
	if err != nil {
		return 0, err
	}
	return revision, w.flush(ctx)
}

// add adds an object to the part.
func (w *baseWriter) add(ctx context.Context, kv *mvccpb.KeyValue) (err error) {
	if kv.Lease, err = w.lifetime(ctx, kv.Lease); err != nil {
		return err
	}
	if w.content, err = records.AppendEvent(w.content, &mvccpb.Event{Kv: kv}); err != nil {
		return err
	}
	if len(w.content) < maxBatch {
		return nil
	}
	return w.flush(ctx)
}

// flush writes a part.
func (w *baseWriter) flush(ctx context.Context) error {
	if len(w.content) == 0 {
		return nil
	}
	sealed, err := chain.Seal(w.content, w.recipients...)
	if err != nil {
		return err
	}
	part, err := w.chain.AddPart(ctx, fmt.Sprintf("%s/%04d", w.name, len(w.parts)+1), sealed)
	if err != nil {
		return err
	}
	w.parts, w.content = append(w.parts, part), w.content[:0]
	return nil
}
