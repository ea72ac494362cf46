package backup

import (
	"context"
	"slices"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
)

// prune removes what is older than it has to be kept. Some buckets allow no deletion: their own rules have to remove it.
func (s *session) prune(ctx context.Context) {
	oldest, err := s.oldestWhole(ctx)
	if err == nil && oldest > 0 {
		err = s.thin(ctx, oldest)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warnf("Cannot remove old files of the backup: %v", err)
	}
}

// oldestWhole returns the number of the base from which on every state is kept, or 0 if that is the first.
func (s *session) oldestWhole(ctx context.Context) (int64, error) {
	for base := s.tail.Base(); base != nil; {
		if s.cfg.Now().Sub(base.Time) > s.cfg.Keep.All {
			return base.Number, nil
		}
		entry, _, err := s.chain.Read(ctx, base.Number)
		if err != nil {
			return 0, err
		}
		base = entry.LastBase
	}
	return 0, nil
}

// thin removes all entries before a base, except one base of each day.
func (s *session) thin(ctx context.Context, oldest int64) error {
	numbers, err := s.chain.Numbers(ctx)
	if err != nil {
		return err
	}
	before, _ := slices.BinarySearch(numbers, oldest)
	last := "" // the day of the base that is kept after the entry at hand
	kept := map[int64]bool{}
	for _, number := range slices.Backward(numbers[:before]) {
		entry, _, err := s.chain.Read(ctx, number)
		if err != nil {
			return err
		}
		if entry.Kind == chain.Base && date(entry.Time) != last && s.cfg.Now().Sub(entry.Time) < s.cfg.Keep.Daily {
			last, kept[number] = date(entry.Time), true
			continue
		}
		if err := s.chain.Remove(ctx, entry); err != nil {
			return err
		}
	}
	// A base that was never finished has no entry.
	return s.chain.RemoveBases(ctx, func(number int64) bool { return number >= oldest || kept[number] })
}
