// Package rebuild reads a backup: it finds what is needed for a point in time, and makes the state of that time
// of it. The commands that restore, look back and verify use it. They have the recovery key.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// Log is a backup that can be read.
type Log struct {
	Chain *chain.Chain
	// Open decrypts what the chain has.
	Open func(sealed []byte) ([]byte, error)
}

// At is a point in time: a revision, or else a time, or else the newest there is.
type At struct {
	Revision int64
	Time     time.Time
}

// ParseAt reads a revision, or a time as RFC 3339 has it, or without zone in that of this machine. An empty text is the newest point.
func ParseAt(text string) (At, error) {
	if text == "" {
		return At{}, nil
	}
	if revision, err := strconv.ParseInt(text, 10, 64); err == nil && revision > 0 {
		return At{Revision: revision}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return At{Time: at}, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly, "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return At{Time: at}, nil
		}
	}
	return At{}, fmt.Errorf("%q is neither a revision nor a time: write 123456, 2026-11-29T15:04:05Z, or \"2026-11-29 15:04\" in this machine's time zone", text)
}

// Point is a state that the backup has.
type Point struct {
	// Revision is the newest one of the state, and Time when the backup last saw it as the newest one. It is zero if the
	// backup does not say.
	Revision int64
	Time     time.Time
	// Base is where the state begins, and Changes are the entries with what changed since.
	Base    *chain.Entry
	Changes []*chain.Entry
	// Tail is the newest entry of the backup.
	Tail *chain.Entry
}

// errEmpty says that there is nothing to read.
var errEmpty = errors.New("this backup has nothing yet")

// Find finds the newest state that is not after a point. It reads and verifies all that the state needs, except the parts of the base.
func (l *Log) Find(ctx context.Context, at At) (*Point, error) {
	numbers, err := l.Chain.Numbers(ctx)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, errEmpty
	}
	tail, _, err := l.Chain.Read(ctx, numbers[len(numbers)-1])
	if err != nil {
		return nil, err
	}
	last, err := l.last(ctx, numbers, at)
	if err != nil {
		return nil, err
	}
	p := &Point{Tail: tail}
	if err := l.collect(ctx, p, numbers[:last+1], at); err != nil {
		return nil, err
	}
	return p, l.settle(ctx, p, at)
}

// last returns the index of the last entry that may have something of the point.
func (l *Log) last(ctx context.Context, numbers []int64, at At) (int, error) {
	var fault error
	// The first entry that ends at the point, or after it, has it.
	found := sort.Search(len(numbers), func(i int) bool {
		if fault != nil {
			return true
		}
		entry, _, err := l.Chain.Read(ctx, numbers[i])
		if err != nil {
			fault = err
			return true
		}
		switch {
		case at.Revision > 0:
			return entry.To >= at.Revision || entry.Revision == at.Revision
		case !at.Time.IsZero():
			return !entry.Time.Before(at.Time)
		}
		return i == len(numbers)-1
	})
	if fault == nil && found == len(numbers) {
		if at.Revision > 0 {
			return 0, fmt.Errorf("the backup ends before revision %d", at.Revision)
		}
		found-- // nothing has changed since
	}
	return found, fault
}

// collect goes back from the last entry to the base that the point needs.
func (l *Log) collect(ctx context.Context, p *Point, numbers []int64, at At) error {
	var after *chain.Entry
	for _, number := range slices.Backward(numbers) {
		entry, _, err := l.Chain.Read(ctx, number)
		if err != nil {
			return err
		}
		if after != nil {
			if err := after.Follows(entry); err != nil {
				return fmt.Errorf("%w. Nothing of the time around it can be restored: choose another time with --at", err)
			}
		}
		after = entry
		switch {
		case entry.Kind == chain.Changes:
			p.Changes = append(p.Changes, entry)
		case entry.Kind != chain.Base:
			return fmt.Errorf("entry %d of the backup is of the kind %q: a newer kedge wrote it, use that version", entry.Number, entry.Kind)
		case at.Revision > 0 && entry.Revision > at.Revision, at.Revision == 0 && !at.Time.IsZero() && entry.Time.After(at.Time):
			// This base is later than the point. The search goes on to an older base. Without changes in between, the entries need not
			// follow each other: of older times, the backup keeps only some bases.
			if len(p.Changes) == 0 {
				after = nil
			}
		default:
			p.Base = entry
			slices.Reverse(p.Changes)
			return nil
		}
	}
	return errors.New("the backup does not reach back so far")
}

// settle finds the point's revision, and fails if the changes do not reach it without a gap.
func (l *Log) settle(ctx context.Context, p *Point, at At) error {
	p.Revision, p.Time = p.Base.Revision, p.Base.Time
	reached := p.Base.Revision
	for i, entry := range p.Changes {
		if entry.From > reached {
			return fmt.Errorf("the backup has no changes between the revisions %d and %d: choose another time with --at", reached, entry.From)
		}
		reached = max(reached, entry.To)
		if i < len(p.Changes)-1 || at == (At{}) {
			p.Revision, p.Time = reached, entry.Time
			continue
		}
		if err := l.within(ctx, p, entry, at); err != nil {
			return err
		}
	}
	if at.Revision > 0 && p.Revision != at.Revision {
		return fmt.Errorf("the backup has no state of revision %d. The last one before it is of revision %d: use that, or a later time", at.Revision, p.Revision)
	}
	return nil
}

// within finds the point in the last entry.
func (l *Log) within(ctx context.Context, p *Point, entry *chain.Entry, at At) error {
	if at.Revision > 0 && entry.To >= at.Revision {
		p.Revision = at.Revision
	}
	content, err := l.changes(ctx, entry)
	if err != nil {
		return err
	}
	return records.Read(content, records.Visitor{Moment: func(m records.Moment) error {
		switch {
		case at.Revision > 0 && m.Revision <= at.Revision:
			p.Time = m.Time
		case at.Revision == 0 && !m.Time.After(at.Time):
			p.Revision, p.Time = max(p.Revision, m.Revision), m.Time
		}
		return nil
	}})
}

// changes returns the content of an entry.
func (l *Log) changes(ctx context.Context, entry *chain.Entry) ([]byte, error) {
	again, sealed, err := l.Chain.Read(ctx, entry.Number)
	if err != nil {
		return nil, err
	}
	if again.Sum != entry.Sum {
		return nil, fmt.Errorf("entry %d of the backup was replaced while it was read", entry.Number)
	}
	content, err := l.Open(sealed)
	if err != nil {
		return nil, fmt.Errorf("entry %d of the backup: %w", entry.Number, err)
	}
	return content, nil
}
